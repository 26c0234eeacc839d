"""`Programme`: what a few training steps request of the device, in order, to be simulated on any machine.

It is recorded while a script runs on an emulated device, and has no times: those depend on the machine.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gapless.model.gpus import Card
from gapless.model.memory import MemoryRun
from gapless.model.source import SourceLine

Kind = Literal[
    "operator", "wait", "copy", "stream", "record", "await", "collective", "graph", "obstacle", "update"
]  # fmt: skip
"""What an entry is.

- ``operator``: an operator that launches work on the device;
- ``wait``: the host waits (where: `Entry.site`, why: `Entry.mechanism`);
- ``copy``: a copy between host and device that does not wait;
- ``stream``: `Entry.stream` becomes the current stream;
- ``record``: event `Entry.number` is recorded in `Entry.stream`;
- ``await``: later work in `Entry.stream` waits for event `Entry.number`; below 0 the current stream waits for
  a collective: -1 is the last one before it, -2 the one before that;
- ``collective``: the rank takes part in the collective `Entry.name` of `Entry.group`;
- ``graph``: a captured CUDA graph is launched; following entries with `Entry.graph` are in it;
- ``obstacle``: something that no graph can hold: `Entry.name`, and in `Entry.detail` what to change;
- ``update``: the optimizer `Entry.name`, at position `Entry.site` in `Session.optimizers`, begins to step
  over `Entry.tensors` parameters in `Entry.number` groups, in the way `Entry.detail`.
"""

MAX_ITEMS = 60_000
"""Items of all segments that a run keeps, or of one segment: it bounds the recording's memory."""

Shape = tuple[int, ...]

Order = Literal["", "kept", "strided", "turned"]
"""How the memory layouts of an elementwise operator's tensors compare: equal (``kept``); different, but
with the same innermost dimension (``strided``); or with different ones (``turned``); "": unknown."""


class GpuRates(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The peak rates of a GPU by its data sheet: GB/s and dense TFLOP/s; 0 if it has no such path.

    `link` joins the GPUs of a machine (NVLink, Infinity Fabric), one way. `clock` is the boost clock in MHz.
    """

    name: str = ""
    bandwidth: float = 0.0
    fp32: float = 0.0
    tf32: float = 0.0
    fp16: float = 0.0
    bf16: float = 0.0
    fp8: float = 0.0
    pcie: float = 0.0
    link: float = 0.0
    l2_bytes: int = 0
    multiprocessors: int = 0
    clock: int = 0


class Entry(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One request of a programme; equal requests are one entry.

    Operators:

    - `name`; `inputs`, `outputs`: shapes of its tensors (of long lists the first few); `tensors`, `elements`:
      counts of all inputs; `dtype`: of the first.
    - `reads`, `writes`: bytes; of expanded tensors those that exist.
    - `flops`: of a Triton kernel's products; `block`: threads of a kernel with a single block, if they depend
      on torch's version.
    - `tf32`: fp32 matrix work may run as TF32.
    - `backward`: launched by the autograd thread; `optimizer`: in an optimizer's step; `regraded`: in
      backward with gradients enabled: a recomputed forward pass, or a backward pass that is differentiated.
    - `causal`: of attention, no query sees a later key; `channels_last`: the layout of a convolution or batch
      norm; `order`: of copies and the like, how the tensors' layouts compare, of norms, how the inputs'
      layouts compare to the required ones.
    - `compiled`: part of what the script gave to `torch.compile`, or of its backward pass.
    - `graph`: launched by the last captured graph, not by a call of its own. A ``graph`` holds `tensors` of
      these.

    Waits: `site` is a position in `Session.sites`, `waits` how often the host waits there in a row;
    `mechanism` and `detail` are the site's, `reads` the bytes copied. Copies: `mechanism` is ``h2d`` or
    ``d2h``, `detail` the host's memory. Streams and events are small numbers; 0 is the default stream.

    Collectives (``all_reduce``, …, ``send``, ``recv``, ``barrier``): `reads` is what this rank contributes
    and `writes` what it has in the end, `ranks` the number of participants, `group` their names (``tp: ranks
    0-7``), `line` the user's line; `detail` is ``host`` if the tensors are on the host.
    """

    kind: Kind = "operator"
    name: str = ""
    dtype: str = ""
    inputs: tuple[Shape, ...] = ()
    outputs: tuple[Shape, ...] = ()
    tensors: int = 0
    elements: int = 0
    reads: int = 0
    writes: int = 0
    flops: int = 0
    block: int = 0
    tf32: bool = False
    backward: bool = False
    optimizer: bool = False
    regraded: bool = False
    causal: bool = False
    channels_last: bool = False
    order: Order = ""
    graph: bool = False
    compiled: bool = False
    site: int = -1
    waits: int = 0
    mechanism: str = ""
    detail: str = ""
    stream: int = 0
    number: int = 0
    ranks: int = 0
    group: str = ""
    line: SourceLine | None = None


class Segment(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What happened between two marks that advance the tick.

    `tick` is the number of such marks before, `body` a position in `Programme.bodies`. `evaluates`: a model
    was evaluated in it. `arrived` are the types and shapes of tensors from the host, in order, without single
    numbers.
    """

    tick: int
    body: int = 0
    evaluates: bool = False
    arrived: tuple[tuple[str, Shape], ...] = ()


class Measured(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Times of one operator in a real profile: nanoseconds on the device and kernels per call.

    `shapes` are those of its inputs if recorded, else empty. `calls` is the size of the sample.
    """

    name: str
    shapes: tuple[Shape, ...] = ()
    device: int = 0
    kernels: float = 1.0
    calls: int = 0


class Calibration(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Times from a real profile of the same script, in nanoseconds.

    `path` and `gpu` name the profile. `operators` have their times on the device; `forward`, `backward` and
    `optimizer` are the host's time per operator there (-1: too few in the profile), `call` the length of a
    launching call, `step` that of the profile's steps without their time in data loaders.
    """

    path: str = ""
    gpu: str = ""
    operators: tuple[Measured, ...] = ()
    forward: int = -1
    backward: int = -1
    optimizer: int = -1
    call: int = -1
    step: int = -1


class HostSpeed(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The host's time per operator relative to a usual one: `measured` on the machine that ran the script,
    whose processor is `cpu`, or given by the user. `apart`: that machine has no GPU, so a GPU machine's
    CPU may differ."""

    factor: float = 1.0
    measured: bool = False
    cpu: str = ""
    apart: bool = False


class Programme(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The last segments of a run, oldest first, and their contents.

    - `gpu`: the emulated device.
    - `bodies`: sequences of positions in `entries`.
    - `threads`: other threads than the main one launched work, which is not included; `truncated`: a segment
      was too long to be kept whole.
    - `node`: GPUs per machine (0: unknown); `network`: GB/s to other machines for each GPU (0: not given);
      `link`: GB/s within a machine, if given.
    - `host`: the host's speed, if measured or given.
    - `lines`: entries have the user's lines.
    - `emptied`: memory requests of each device if steps call ``torch.cuda.empty_cache()``, for a few calls.
    - `libraries`: those that the run initialized, each with the line of its first call.
    """

    gpu: GpuRates = GpuRates()
    entries: tuple[Entry, ...] = ()
    bodies: tuple[tuple[int, ...], ...] = ()
    segments: tuple[Segment, ...] = ()
    threads: bool = False
    truncated: bool = False
    node: int = 0
    network: float = 0.0
    link: float = 0.0
    calibration: Calibration | None = None
    host: HostSpeed | None = None
    lines: bool = False
    emptied: tuple[MemoryRun, ...] = ()
    libraries: dict[str, SourceLine] = {}


def gpu_limits(card: Card) -> GpuRates:
    """Return the limits of `card` that an estimate uses."""
    return GpuRates(
        name=card.name,
        bandwidth=card.bandwidth,
        fp32=card.fp32,
        tf32=card.tf32,
        fp16=card.fp16,
        bf16=card.bf16,
        fp8=card.fp8,
        pcie=card.pcie,
        link=card.link,
        l2_bytes=getattr(card, "l2_bytes", 0),
        multiprocessors=card.multi_processor_count,
        clock=getattr(card, "clock", 0),
    )
