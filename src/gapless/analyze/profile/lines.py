"""Which line of whose code a row of the host stands for."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field

import numpy as np

from gapless.model import Site, SourceLine, Stack
from gapless.trace.names import LAUNCH, VIEWS
from gapless.trace.timeline import Bools, HostKind, Ints, Timeline

_FRAME = re.compile(r"^(.+?)\((\d+)\): (.+)$", re.DOTALL)
_LABEL = re.compile(r"^(\S[^|]*?(?:\.py|>)):(\d+) (\S+) \| (.*)$", re.DOTALL)
"""What `gapless.annotate` puts around each statement: ``losses.py:42 dice_loss | score = score[mask]``."""
_BUILT_IN = re.compile(
    r"^<built-in (?:method (?P<method>\S+) of (?P<owner>.+?) object|function (?P<function>\S+))"
)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_INSTANCE = re.compile(r"^(nn\.Module: .+?)_\d+$")
_INSTALLED = re.compile(r"(?:site|dist)-packages/([A-Za-z0-9_]+)")
_STANDARD = re.compile(r"(?:^|/)lib(?:64)?/python\d[.\d]*/")
_CHECKOUT = re.compile(
    r"(?:^|/)(torch)/(?:nn|optim|utils|autograd|cuda|distributed|profiler|_dynamo|_inductor)/"
)
_GENERATED = re.compile(r"torchinductor_|(?:^|/)[a-z0-9]{2}/c[a-z2-7]{50,52}\.py$")
"""What `torch.compile` writes, also where the profiler has cut the path."""
_NODE = re.compile(r"^autograd::engine::evaluate_function: (\S+)")
_OPERATOR = re.compile(r"(?!autograd::engine::)(?:\w+::|\w+Backward\d*$)")
"""Operators proper: not the engine that calls them, and no annotation."""

_PACKAGES = frozenset(
    (
        "accelerate", "aiter", "apex", "attr", "bitsandbytes", "catalyst", "click", "cv2", "datasets",
        "deepspeed", "dgl", "diffusers", "einops", "fairscale", "fastai", "flash_attn", "functorch",
        "gapless", "gpytorch", "huggingface_hub", "hydra", "ignite", "ipykernel", "IPython", "lightning",
        "lightning_fabric", "lightning_utilities", "matplotlib", "megatron", "mlflow", "monai", "numpy",
        "omegaconf", "packaging", "pandas", "peft", "PIL", "pydantic", "pyro", "pytorch_lightning",
        "ray", "requests", "safetensors", "scipy", "sglang", "skimage", "sklearn", "skorch",
        "tensorboard", "timm", "tokenizers", "torch", "torch_geometric", "torch_tb_profiler", "torchao",
        "torchaudio", "torchdata", "torchgen", "torchmetrics", "torchrec", "torchtext", "torchvision",
        "tqdm", "traitlets", "transformers", "triton", "trl", "typeguard", "urllib3", "vllm", "wandb",
        "xformers",
    )
)  # fmt: skip
"""Packages by the folder they are imported from: the profiler cuts the paths of files off before it."""

_OWN_NAMES = frozenset({"cmd", "code", "profile", "site", "test", "token", "trace", "types"})
"""Modules of the standard library whose names people give to their own scripts."""

_CALLERS = 3
_LIBRARY_ONLY = 12
"""Frames that are kept of a stack in which no line is the user's."""


def library(file: str) -> str:
    """The package `file` belongs to, "python" for the standard library, "" for the user's own."""
    path = file.replace("\\", "/")
    if _GENERATED.search(path):
        return "torch"
    for pattern in (_INSTALLED, _CHECKOUT):
        found = pattern.search(path)
        if found:
            return found.group(1)
    if _STANDARD.search(path) or (path.startswith("<") and not path.startswith("<ipython")):
        return "python"  # what is run from a string is what starts a worker, mostly
    if path.startswith("/"):
        return ""
    first, _, rest = path.partition("/")
    if rest:
        if first in _PACKAGES:
            return first
        return "python" if first in sys.stdlib_module_names and first not in _OWN_NAMES else ""
    stem = first.removesuffix(".py")
    return "python" if stem in sys.stdlib_module_names and stem not in _OWN_NAMES else ""


def source_line(text: str) -> SourceLine | None:
    """``file.py(12): function`` as a line; None for what is no function of a file (built-ins, modules).

    A frame that the profiler traced has the line where its function begins, an entry of a recorded ``Call
    stack`` the line that was running.
    """
    found = _FRAME.match(text)
    if not found:
        return None
    file, line, function = found.groups()
    if file.startswith("<") and not file.startswith(("<frozen", "<string", "<ipython")):
        return None
    return SourceLine(file, int(line), function, library=library(file))


def labelled_line(text: str) -> SourceLine | None:
    """The line that a label of `gapless.annotate` names; None for any other annotation."""
    found = _LABEL.match(text)
    if not found:
        return None
    file, line, function, code = found.groups()
    return SourceLine(file, int(line), function, code, library(file))


@dataclass(frozen=True)
class Place:
    """What surrounds a row of the host, innermost first.

    `operators` are the operators around it, `call` the built-in through which Python came there
    (``Tensor.item``), `node` the autograd node where it runs in backward and `forward` the stack of the
    forward operator that made that node. `annotations` are the user's own, without those that mark steps.
    """

    name: str
    stack: Stack = ()
    operators: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()
    call: str = ""
    node: str = ""
    forward: Stack = ()

    @property
    def outermost(self) -> str:
        """The operator that the program called, or the row's own name where that tells more than a line."""
        operators = [name for name in self.operators if not name.startswith("autograd::engine::")]
        if operators:
            return operators[-1]
        if _marks_step(self.name) or source_line(self.name):
            return ""
        return _built_in(self.name) or self.name

    @property
    def site(self) -> Site:
        """The place as a site at which nothing waits."""
        return Site(
            operator=self.outermost,
            mechanism="none",
            call=self.call,
            stack=self.stack,
            node=self.node,
            forward=self.forward,
        )

    @property
    def described(self) -> str:
        """Where this is, for profiles that know no lines: ``aten::index in forward``."""
        around = [name for name in self.operators if not name.startswith("autograd::engine::")]
        inner = around[-1] if around else ""
        outer = self.annotations[0] if self.annotations else ""
        if self.node:
            inner = f"{inner}, {self.node}" if inner and inner != self.node else self.node
        return f"{inner} in {outer}" if inner and outer else inner or outer


@dataclass
class Places:
    """The places of host rows; rows with the same names around them share one."""

    timeline: Timeline
    _normal: Ints = field(init=False)
    _text: list[str] = field(init=False)
    _forward: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        numbers: dict[str, int] = {}
        normal = []
        for name in self.timeline.names:
            # Objects differ by address and modules by number from call to call; the place does not.
            if name.startswith("<built-in"):
                name = _ADDRESS.sub("", name)
            elif name.startswith("nn.Module"):
                name = _INSTANCE.sub(r"\1", name)
            elif _marks_step(name):
                name = ""
            normal.append(numbers.setdefault(name, len(numbers)))
        self._normal = np.array(normal, np.int64)
        self._text = list(numbers)
        links = self.timeline.links
        self._forward = dict(zip(links.backward.tolist(), links.forward.tolist(), strict=True))

    def of(self, rows: Ints) -> tuple[Ints, list[Place]]:
        """For each of `rows` (-1: nowhere) a position in the list of places that follows."""
        keys = self.keys(rows)
        _, first, codes = np.unique(keys, return_index=True, return_inverse=True)
        return codes.reshape(-1), [self.place(int(rows[position])) for position in first]

    def place(self, row: int) -> Place:
        """The place of one row."""
        if row < 0:
            return Place("")
        chain = self._chain(row)
        stack, operators, annotations, call, node = self._around(chain)
        forward: Stack = ()
        for one in chain:
            if one in self._forward:
                forward = self._around(self._chain(self._forward[one]))[0]
                break
        name = self.timeline.names[self.timeline.host.name[row]]
        return Place(name, stack, operators, annotations, call, node, forward)

    def _chain(self, row: int) -> list[int]:
        """`row` and what surrounds it, innermost first.

        A step's annotation begins inside the functions that marked it, and those end before the step does.
        """
        host = self.timeline.host
        return [one for one in self.timeline.with_ancestors(row) if host.end[one] >= host.start[row]]

    def _around(self, chain: list[int]) -> tuple[Stack, tuple[str, ...], tuple[str, ...], str, str]:
        host, names = self.timeline.host, self.timeline.names
        frames: list[SourceLine] = []
        labels: list[SourceLine] = []
        operators: list[str] = []
        annotations: list[str] = []
        recorded = call = node = ""
        for row in chain:
            kind, name = int(host.kind[row]), names[host.name[row]]
            if not recorded and host.stack[row] >= 0:
                recorded = self.timeline.stacks[host.stack[row]]
            if kind == HostKind.FRAME:
                line = source_line(name)
                if line is not None:
                    frames.append(_labelled(line, labels))
                    labels = []
                elif not frames and not call:
                    call = _built_in(name)
            elif kind == HostKind.OPERATOR:
                # Profiles up to torch 1.11 file the user's annotations among the operators.
                if "::" not in name:
                    _annotated(name, labels, annotations)
                elif not frames:
                    operators.append(name)
                found = _NODE.match(name)
                node = node or (found.group(1) if found else "")
            elif kind == HostKind.ANNOTATION:
                _annotated(name, labels, annotations)
        if not frames and labels:
            frames = _one_per_function(labels)
        elif not frames and recorded:
            lines = map(source_line, recorded.split(";"))
            frames = [line for line in lines if line is not None]
        return _short(frames), tuple(operators), tuple(annotations), call, node

    def keys(self, rows: Ints) -> Ints:
        """A number for each row that is the same where all names around it are."""
        host, parents = self.timeline.host, self.timeline.parents
        stacks = host.stack
        current = rows.copy()
        keys = np.zeros(len(rows), np.uint64)
        forward = self._forward_rows()
        with np.errstate(over="ignore"):
            while (alive := current >= 0).any():
                at = current[alive]
                mixed = self._normal[host.name[at]] * 4 + 1
                mixed = mixed * 1_000_003 + stacks[at] + 1
                if forward is not None:
                    made = forward[at]
                    mixed = np.where(made >= 0, mixed * 31 + host.name[made], mixed)
                # FNV-like: order matters, and a collision is as unlikely as 64 bits make it.
                keys[alive] = (keys[alive] ^ mixed.astype(np.uint64)) * np.uint64(0x100000001B3) + np.uint64(
                    1
                )
                keys[alive] ^= keys[alive] >> np.uint64(29)
                current[alive] = parents[at]
        return keys.view(np.int64)

    def _forward_rows(self) -> Ints | None:
        if not self._forward:
            return None
        made = np.full(len(self.timeline.host), -1, np.int64)
        made[self.timeline.links.backward] = self.timeline.links.forward
        return made


def _short(frames: list[SourceLine]) -> Stack:
    """The frames up to the user's line and a few of its callers: a summary need not say who called those."""
    first = next((at for at, frame in enumerate(frames) if frame.is_user), None)
    return tuple(frames[:_LIBRARY_ONLY] if first is None else frames[: first + 1 + _CALLERS])


def _annotated(name: str, labels: list[SourceLine], annotations: list[str]) -> None:
    """File an annotation: with the labels that name lines, or with the user's own."""
    line = labelled_line(name)
    if line is not None:
        labels.append(line)
    elif not _marks_step(name):
        annotations.append(name)


def _labelled(frame: SourceLine, labels: list[SourceLine]) -> SourceLine:
    """A frame knows where its function begins; the innermost label inside it, which line was running."""
    inside = [
        label for label in labels if label.function.rpartition(".")[2] == frame.function.rpartition(".")[2]
    ]
    if not inside:
        return frame
    return SourceLine(frame.file, inside[0].line, frame.function, inside[0].code, frame.library)


def _one_per_function(labels: list[SourceLine]) -> list[SourceLine]:
    """The innermost statement of each call; those around it, its loop or condition, are of the same call."""
    return [
        label
        for at, label in enumerate(labels)
        if at == 0 or (label.file, label.function) != (labels[at - 1].file, labels[at - 1].function)
    ]


def _marks_step(name: str) -> bool:
    return name.startswith(("ProfilerStep#", "PyTorch Profiler"))


def _built_in(name: str) -> str:
    """``Tensor.item`` for ``<built-in method item of Tensor object at 0x…>``."""
    found = _BUILT_IN.match(name)
    if not found:
        return ""
    if found["function"]:
        return found["function"].rstrip(">")
    owner = found["owner"].rpartition(".")[2]
    return f"torch.{found['method']}" if owner == "type" else f"{owner}.{found['method']}"


def enclosing(timeline: Timeline, threads: Ints, times: Ints) -> Ints:
    """The innermost host span of each thread that covers each time; -1 where there is none."""
    host, parents = timeline.host, timeline.parents
    if not len(host):
        return np.full(len(times), -1, np.int64)
    span = int(host.end.max()) + 2
    axis = host.thread.astype(np.int64) * span + host.start
    rows = np.searchsorted(axis, threads * span + np.clip(times, 0, span - 1), side="right") - 1
    rows = np.where((rows >= 0) & (host.thread[np.maximum(rows, 0)] == threads), rows, -1)
    while True:
        left = (rows >= 0) & (host.end[np.maximum(rows, 0)] < times)
        if not left.any():
            return rows
        rows[left] = parents[rows[left]]


def launching(timeline: Timeline, rows: Ints) -> Bools:
    """For each host row (-1: nowhere) whether the outermost operator there launches, or only gives views."""
    host, parents = timeline.host, timeline.parents
    named = timeline.names_where(_OPERATOR.match)
    outer = np.full(len(rows), -1, np.int64)
    current = rows.astype(np.int64)
    while (alive := current >= 0).any():
        at = current[alive]
        operator = (host.kind[at] == HostKind.OPERATOR) & named[host.name[at]]
        outer[alive] = np.where(operator, at, outer[alive])
        current[alive] = parents[at]
    inside = outer >= 0
    if not inside.any():
        return inside
    span = int(host.end.max()) + 2
    axis = host.thread.astype(np.int64) * span + host.start
    launches = timeline.names_where(LAUNCH.match)[host.name] & (host.kind == HostKind.CALL)
    launches[timeline.launchers[timeline.launchers >= 0]] = True
    when = axis[launches]  # rows are by thread and start
    held = outer[inside]
    end = host.thread[held].astype(np.int64) * span + host.end[held]
    launching = np.searchsorted(when, end, side="right") > np.searchsorted(when, axis[held])
    inside[inside] = launching | timeline.names_where(VIEWS.__contains__)[host.name[held]]
    return inside
