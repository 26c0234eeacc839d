"""Find the line, and whose code it is, that a row of the host stands for."""

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
"""The label `gapless.annotate` puts on each statement: ``losses.py:42 dice_loss | score = score[mask]``."""
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
"""Files that `torch.compile` writes, also where the profiler has cut the path."""
_NODE = re.compile(r"^autograd::engine::evaluate_function: (\S+)")
_OPERATOR = re.compile(r"(?!autograd::engine::)(?:\w+::|\w+Backward\d*$)")
"""Matches operators, but neither the engine that calls them nor annotations."""

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
"""Packages by the folder they are imported from: the profiler cuts the part of paths before it."""

_COMMON_SCRIPT_NAMES = frozenset({"cmd", "code", "profile", "site", "test", "token", "trace", "types"})
"""Modules of the standard library after which people name their own scripts."""

_MAX_CALLERS = 3
"""Callers kept above the user's line: enough to tell its uses apart."""
_MAX_LIBRARY_FRAMES = 12
"""Frames kept of a stack without a line of the user's; of others `_MAX_CALLERS` above that line."""


def library_of(file: str) -> str:
    """Return the package `file` belongs to, "python" for the standard library, "" for the user's own."""
    path = file.replace("\\", "/")
    if _GENERATED.search(path):
        return "torch"
    for pattern in (_INSTALLED, _CHECKOUT):
        match = pattern.search(path)
        if match:
            return match.group(1)
    if _STANDARD.search(path) or (path.startswith("<") and not path.startswith("<ipython")):
        return "python"  # code run from a string mostly starts a worker
    if path.startswith("/"):
        return ""
    first, _, rest = path.partition("/")
    if rest:
        if first in _PACKAGES:
            return first
        return "python" if first in sys.stdlib_module_names and first not in _COMMON_SCRIPT_NAMES else ""
    stem = first.removesuffix(".py")
    return "python" if stem in sys.stdlib_module_names and stem not in _COMMON_SCRIPT_NAMES else ""


def parse_frame(text: str) -> SourceLine | None:
    """Parse ``file.py(12): function``; None for names without a file (built-ins, modules).

    A frame that the profiler traced has the line where its function begins, an entry of a recorded ``Call
    stack`` the line that was running.
    """
    match = _FRAME.match(text)
    if not match:
        return None
    file, line, function = match.groups()
    if file.startswith("<") and not file.startswith(("<frozen", "<string", "<ipython")):
        return None
    return SourceLine(file, int(line), function, library=library_of(file))


def parse_label(text: str) -> SourceLine | None:
    """Return the line that a label of `gapless.annotate` names; None for any other annotation."""
    match = _LABEL.match(text)
    if not match:
        return None
    file, line, function, code = match.groups()
    return SourceLine(file, int(line), function, code, library_of(file))


@dataclass(frozen=True)
class HostPlace:
    """The names around a row of the host, innermost first.

    `operators` are the operators around it, `call` the built-in that Python called (``Tensor.item``), `node`
    the autograd node if it runs in backward and `forward` the stack of the forward operator that created that
    node. `annotations` are the user's own, without those that mark steps.
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
        """The operator that the program called, or the row's own name if that is not just a line."""
        operators = [name for name in self.operators if not name.startswith("autograd::engine::")]
        if operators:
            return operators[-1]
        if _marks_step(self.name) or parse_frame(self.name):
            return ""
        return _built_in_name(self.name) or self.name

    @property
    def site(self) -> Site:
        """This place as a site without a wait."""
        return Site(
            operator=self.outermost,
            mechanism="none",
            call=self.call,
            stack=self.stack,
            node=self.node,
            forward=self.forward,
        )

    @property
    def description(self) -> str:
        """Where this is, for profiles without lines: ``aten::index in forward``."""
        around = [name for name in self.operators if not name.startswith("autograd::engine::")]
        inner = around[-1] if around else ""
        outer = self.annotations[0] if self.annotations else ""
        if self.node:
            inner = f"{inner}, {self.node}" if inner and inner != self.node else self.node
        return f"{inner} in {outer}" if inner and outer else inner or outer


@dataclass
class PlaceIndex:
    """The places of host rows; rows with the same names around them share one."""

    timeline: Timeline
    _normal: Ints = field(init=False)
    _text: list[str] = field(init=False)
    _forward: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        numbers: dict[str, int] = {}
        normal = []
        for name in self.timeline.names:
            # The same place has objects at other addresses and modules of other numbers from call to call.
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

    def of(self, rows: Ints) -> tuple[Ints, list[HostPlace]]:
        """Return for each of `rows` (-1: nowhere) a position in the returned list of places."""
        keys = self.keys(rows)
        _, first, codes = np.unique(keys, return_index=True, return_inverse=True)
        return codes.reshape(-1), [self.place(int(rows[position])) for position in first]

    def place(self, row: int) -> HostPlace:
        """Return the place of one row."""
        if row < 0:
            return HostPlace("")
        chain = self._chain(row)
        stack, operators, annotations, call, node = self._around(chain)
        forward: Stack = ()
        for ancestor in chain:
            if ancestor in self._forward:
                forward = self._around(self._chain(self._forward[ancestor]))[0]
                break
        name = self.timeline.names[self.timeline.host.name[row]]
        return HostPlace(name, stack, operators, annotations, call, node, forward)

    def _chain(self, row: int) -> list[int]:
        """Return `row` and the spans around it, innermost first.

        A step's annotation begins inside the functions that mark it, and those end before the step does.
        """
        host = self.timeline.host
        return [
            ancestor
            for ancestor in self.timeline.with_ancestors(row)
            if host.end[ancestor] >= host.start[row]
        ]

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
                line = parse_frame(name)
                if line is not None:
                    frames.append(_with_running_line(line, labels))
                    labels = []
                elif not frames and not call:
                    call = _built_in_name(name)
            elif kind == HostKind.OPERATOR:
                # Profiles up to torch 1.11 record the user's annotations as operators.
                if "::" not in name:
                    _file_annotation(name, labels, annotations)
                elif not frames:
                    operators.append(name)
                match = _NODE.match(name)
                node = node or (match.group(1) if match else "")
            elif kind == HostKind.ANNOTATION:
                _file_annotation(name, labels, annotations)
        if not frames and labels:
            frames = _innermost_labels(labels)
        elif not frames and recorded:
            lines = map(parse_frame, recorded.split(";"))
            frames = [line for line in lines if line is not None]
        return _shorten(frames), tuple(operators), tuple(annotations), call, node

    def keys(self, rows: Ints) -> Ints:
        """Return a number for each row; rows have the same number if all names around them are equal."""
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
                    forward_rows = forward[at]
                    mixed = np.where(forward_rows >= 0, mixed * 31 + host.name[forward_rows], mixed)
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
        forward_rows = np.full(len(self.timeline.host), -1, np.int64)
        forward_rows[self.timeline.links.backward] = self.timeline.links.forward
        return forward_rows


def _shorten(frames: list[SourceLine]) -> Stack:
    """Return the frames up to the user's line and a few of its callers."""
    first = next((at for at, frame in enumerate(frames) if frame.is_user), None)
    return tuple(frames[:_MAX_LIBRARY_FRAMES] if first is None else frames[: first + 1 + _MAX_CALLERS])


def _file_annotation(name: str, labels: list[SourceLine], annotations: list[str]) -> None:
    """Add an annotation to the labels that name lines, or to the user's own."""
    line = parse_label(name)
    if line is not None:
        labels.append(line)
    elif not _marks_step(name):
        annotations.append(name)


def _with_running_line(frame: SourceLine, labels: list[SourceLine]) -> SourceLine:
    """Return the frame at the line that was running, if a label inside it says so."""
    inside = [
        label for label in labels if label.function.rpartition(".")[2] == frame.function.rpartition(".")[2]
    ]
    if not inside:
        return frame
    return SourceLine(frame.file, inside[0].line, frame.function, inside[0].code, frame.library)


def _innermost_labels(labels: list[SourceLine]) -> list[SourceLine]:
    """Return the innermost label of each call; those around it, a loop or condition, are of the same call."""
    return [
        label
        for at, label in enumerate(labels)
        if at == 0 or (label.file, label.function) != (labels[at - 1].file, labels[at - 1].function)
    ]


def _marks_step(name: str) -> bool:
    return name.startswith(("ProfilerStep#", "PyTorch Profiler"))


def _built_in_name(name: str) -> str:
    """Return ``Tensor.item`` for ``<built-in method item of Tensor object at 0x…>``."""
    match = _BUILT_IN.match(name)
    if not match:
        return ""
    if match["function"]:
        return match["function"].rstrip(">")
    owner = match["owner"].rpartition(".")[2]
    return f"torch.{match['method']}" if owner == "type" else f"{owner}.{match['method']}"


def enclosing_rows(timeline: Timeline, threads: Ints, times: Ints) -> Ints:
    """Return the innermost host span of each thread that covers each time; -1 if there is none."""
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


def is_launching(timeline: Timeline, rows: Ints) -> Bools:
    """Return for each host row (-1: nowhere) whether its outermost operator launches or only makes views."""
    host, parents = timeline.host, timeline.parents
    is_operator = timeline.names_where(_OPERATOR.match)
    outer = np.full(len(rows), -1, np.int64)
    current = rows.astype(np.int64)
    while (alive := current >= 0).any():
        at = current[alive]
        operator = (host.kind[at] == HostKind.OPERATOR) & is_operator[host.name[at]]
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
    outermost = outer[inside]
    end = host.thread[outermost].astype(np.int64) * span + host.end[outermost]
    launches_inside = np.searchsorted(when, end, side="right") > np.searchsorted(when, axis[outermost])
    inside[inside] = launches_inside | timeline.names_where(VIEWS.__contains__)[host.name[outermost]]
    return inside
