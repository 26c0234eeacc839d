"""`Programme`: what a few training steps request of the device, in order, to be simulated on any machine.

It is recorded while a script runs on an emulated device and holds no times: those depend on the machine.
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
- ``wait``: the host waits (`Entry.site` says where, `Entry.mechanism` why);
- ``copy``: a copy between host and device that does not wait;
- ``stream``: what follows is launched on `Entry.stream`;
- ``record``: event `Entry.number` is recorded in `Entry.stream`;
- ``await``: what `Entry.stream` gets from here on waits for event `Entry.number`; below 0 the current
  stream waits for a collective: -1 is the last one before it, -2 the one before that;
- ``collective``: the rank takes part in `Entry.name` of the ranks in `Entry.group`;
- ``graph``: a captured CUDA graph is launched: what follows and says `Entry.graph` is in it;
- ``obstacle``: something that no graph can hold: `Entry.name`, and `Entry.detail` what to change;
- ``update``: an optimizer `Entry.name` begins to step, of position `Entry.site` in `Session.optimizers`, over
  `Entry.tensors` parameters in `Entry.number` groups, in the way `Entry.detail`.
"""

MAX_ITEMS = 60_000
"""Items of all segments that a run keeps together, or of one segment; it bounds the recording's memory."""

Shape = tuple[int, ...]

Order = Literal["", "kept", "strided", "turned"]
"""How the tensors of an operator that goes through them element by element lie to each other: alike;
otherwise, but neighbours in one are neighbours in the others; or not even that; "" where it is not known."""


class Gpu(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a GPU can do at most, by its data sheet: GB/s and dense TFLOP/s; 0 where it has no such path.

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
    """One thing that a programme asks for; equal ones are one entry.

    `name` is the operator. `inputs` and `outputs` are the shapes of its tensors (of long lists of tensors
    the first few; `tensors` and `elements` count all that it is given), `dtype` that of the first of them.
    `reads` and `writes` are bytes; of an expanded tensor those that exist. `flops` are those of a Triton
    kernel's products, `block` the threads of a kernel of one block alone, where that depends on the version
    of torch. `tf32` says that its fp32 matrix work may run as TF32. `backward` says that the autograd thread
    launches it, `optimizer` that an optimizer's step does, `regraded` that it ran in backward
    with gradients on: a forward pass that is computed again, or a backward pass that is differentiated.
    `causal` says of attention that a query meets no later key, `channels_last` of a convolution or batch norm
    that its tensors are laid out so, `order` of copies and the like how their tensors lie to each other, and
    of norms how what they are given lies to what they want, `compiled` that it is part of what the script
    gave to `torch.compile`, or of the backward pass of that, `graph` that no call of its own launches it: it
    is in the captured graph that was launched last. A ``graph`` holds `tensors` of such.

    For waits `site` is a position in `Session.sites`, `waits` how often the host waits there in a row;
    `mechanism` and `detail` are the site's, `reads` what is copied. For copies `mechanism` is ``h2d`` or
    ``d2h``, and `detail` the host's memory. Streams and events are small numbers; 0 is the default stream.

    For collectives (``all_reduce``, …, ``send``, ``recv``, ``barrier``) `reads` is what this rank brings and
    `writes` what it has in the end, `ranks` how many take part, `group` who (``tp: ranks 0-7``),
    `line` the user's line, and `detail` is ``host`` where the tensors are on the host.
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

    `tick` is the number of such marks before. `body` is a position in `Programme.bodies`. `evaluates` says
    that a model was evaluated in it. `arrived` are the types and shapes of tensors that came from the host,
    in order; not those of single numbers.
    """

    tick: int
    body: int = 0
    evaluates: bool = False
    arrived: tuple[tuple[str, Shape], ...] = ()


class Measured(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a real profile says of one operator: nanoseconds of the device and kernels for each call.

    `shapes` are those of its inputs where the profile holds them, else empty. `calls` were looked at.
    """

    name: str
    shapes: tuple[Shape, ...] = ()
    device: int = 0
    kernels: float = 1.0
    calls: int = 0


class Calibration(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Times from a real profile of the same script, in nanoseconds.

    `path` and `gpu` say of which. `operators` have their times on the device; `forward`, `backward` and
    `optimizer` are what the host needs for one operator there, -1 where the profile has too few; `call` the
    length of a launching call, `step` that of the profile's own steps, without their time in data loaders.
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
    """How long the host takes for its part of an operator, in parts of what a usual one does: `measured` on
    the machine that ran the script, whose processor is `cpu`, or said by the user. `apart` says that this
    machine has no GPU, so that another one's CPU is beside it."""

    factor: float = 1.0
    measured: bool = False
    cpu: str = ""
    apart: bool = False


class Programme(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The last segments of a run, oldest first, and what is in them.

    A body is a sequence of positions in `entries`. `gpu` is the device that was emulated. `threads` says
    that other threads than the main one launched work as well, which is not in it; `truncated` that a segment
    was too long to be kept whole. A machine has `node` GPUs (0: unknown), each with `network` GB/s to other
    machines (0: not said), and `link` GB/s within one where the user says so. `host` is how fast the host is,
    where that was measured or said. With `lines` each entry has the user's line that asks for it. `emptied`
    is what was asked of each device's memory where steps call ``torch.cuda.empty_cache()``, for a few calls.
    `libraries` are those that the run set up, each with the line of its first call.
    """

    gpu: Gpu = Gpu()
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


def gpu_limits(card: Card) -> Gpu:
    """Return the limits of `card` that an estimate uses."""
    return Gpu(
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
