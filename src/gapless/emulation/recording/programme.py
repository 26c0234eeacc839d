"""`ProgrammeRecorder`: the device work of the last steps, in order, recorded while the script runs.

It sees every operator, so each must be cheap: a key of shapes is looked up, and only a new key is examined
closely. `gapless.analyze.estimate` says how long entries take.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from threading import get_ident
from typing import Any

import msgspec
import torch

from gapless import trees
from gapless.emulation.memory.requests import MULTIPLIES, MemoryRecorder, reports_storage_ends
from gapless.emulation.recording.segments import Segments
from gapless.emulation.support import stacks
from gapless.emulation.support.device import Queued
from gapless.emulation.support.layout import channels_last, compare_order, compare_with_rows
from gapless.emulation.support.local import local
from gapless.emulation.support.places import HOST
from gapless.model.gpus import Gpu
from gapless.model.programme import Entry, Programme, Shape, gpu_limits
from gapless.model.source import SourceLine
from gapless.torch_internals import VERSION, current_node

Tensor = torch.Tensor
Parameter = torch.nn.Parameter

_KEPT_OF_LONG_LIST = 3
"""Tensors of a longer list whose shapes are kept."""
_MAX_ARRIVALS = 256
"""Tensors from the host that are kept per segment: the parts of a batch."""
_MAX_SHAPES = 8
"""Tensors of an operator up to which all shapes are kept."""
_MAX_EMPTIED = 5
"""Calls of ``torch.cuda.empty_cache()`` in steps after which memory requests are not recorded any more."""


def one_warp(version: tuple[int, int]) -> dict[str, int]:
    """Return the operators that run in one small block in this version of torch, and its threads.

    Losses before 2.8 (pytorch/pytorch#149548 and #149779).
    """
    return {} if version >= (2, 8) else {"aten::nll_loss_forward": 32, "aten::nll_loss_backward": 32}


_ONE_WARP = one_warp(VERSION)

_CUDNN = frozenset({"aten::convolution", "aten::cudnn_batch_norm", "aten::_cudnn_rnn"})


def _overloads(names: str) -> dict[int, Any]:
    """Return the overloads of the named ATen operators by id."""
    packets = [getattr(torch.ops.aten, name) for name in names.split() if hasattr(torch.ops.aten, name)]
    overloads = [getattr(packet, overload) for packet in packets for overload in packet.overloads()]
    return {id(overload): overload for overload in overloads}


_IMAGES = _overloads(
    "convolution convolution_backward native_batch_norm native_batch_norm_backward cudnn_batch_norm "
    "cudnn_batch_norm_backward _native_batch_norm_legit"
)
"""Operators with special kernels for channels-last images."""
_COPIES = _overloads("clone copy_ _to_copy add add_ sub sub_ mul mul_ div div_ where maximum minimum")
"""Operators that process several tensors element by element, whatever their layouts."""
_ROWS = _overloads("native_layer_norm native_group_norm _fused_rms_norm")
"""Operators that first copy an input whose layout is not contiguous."""


class ProgrammeRecorder:
    """Keeps the last segments of a run: the work between two marks that advance the tick."""

    def __init__(self, gpu: Gpu, node: int = 0, lines: bool = False) -> None:
        self.gpu = gpu
        self.lines = lines  # whether each entry has its line of the user's code
        self.node = node
        self.optimizing = False
        self._segments = Segments()
        self._numbers = self._segments.numbers
        self._add = self._segments.add
        self._functions: dict[int, Any] = {}
        self._arrived: list[tuple[str, Shape]] = []
        self._tick = 0
        self._evaluates = False
        self.launched = False  # kernels, in the current segment
        self._thread = get_ident()
        self._has_other_threads = False
        self._streams: dict[int, int] = {}
        self._events: dict[int, int] = {}
        self._emptied = 0
        self._request_recorder: MemoryRecorder | None = None
        self._libraries: dict[str, SourceLine] = {}
        self._finished: Programme | None = None
        self.collectives = 0
        self.unawaited: dict[int, int] = {}
        """Collective by the address of its result's storage, until something waits for it."""

    # -- recording -----------------------------------------------------------------------------------

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, at: int) -> None:
        """Record an operator that has run on the device, at position `at` (-1: at the end)."""
        if local.quiet:
            return
        if get_ident() != self._thread:
            self._has_other_threads = True
            return
        if local.backward == HOST:  # its own hash is a Python function
            key: list[Any] = [id(func), self.optimizing, local.compiled]
        else:
            compiled = is_compiled() if local.compiled_nodes else local.compiled
            key = [id(func), self.optimizing, compiled, "backward", torch.is_grad_enabled()]
        for arg in (*args, *kwargs.values()) if kwargs else args:
            kind = type(arg)
            if kind is Tensor or kind is Parameter:
                key.append(arg.shape)
                key.append(arg.dtype)
            elif kind is list and arg and isinstance(arg[0], Tensor):
                key.append(len(arg))
                key.append(arg[0].shape)
                key.append(arg[-1].shape)
                key.append(arg[0].dtype)
            elif arg is True:
                key.append(True)
        if id(func) in _IMAGES:
            key.append(channels_last(args))
        elif id(func) in _COPIES:
            key.append(compare_order(args, out))
        elif id(func) in _ROWS:
            key.append(compare_with_rows(args[0]))
        if type(out) is Tensor:
            key.append(out.shape)
        line = stacks.users_line() if self.lines else None
        if line is not None:
            key.append(line)
        shapes = tuple(key)
        number = self._numbers.get(shapes)
        if number is None:
            self._functions[id(func)] = func  # so that its id stays its own
            entry = _describe(func, args, kwargs, out, self.optimizing)
            number = self._new(shapes, msgspec.structs.replace(entry, line=line))
        self._add(number, at)
        self.launched = True

    def wait(self, site: int, mechanism: str, detail: str, waits: int, nbytes: int, operator: str) -> None:
        """Record a wait of the host at the site of that number."""
        if get_ident() != self._thread:
            self._has_other_threads = True
            return
        key = ("wait", site, waits, nbytes)
        number = self._numbers.get(key)
        if number is None:
            number = self._new(
                key,
                Entry(
                    kind="wait", name=operator, site=site, mechanism=mechanism, detail=detail, waits=waits,
                    reads=nbytes, backward=local.backward != HOST,
                ),
            )  # fmt: skip
        self._add(number, -1)

    def event(self, entry: Entry) -> bool:
        """Record another entry (copy without a wait, stream, event, collective); return whether it is
        kept."""
        if get_ident() != self._thread:
            self._has_other_threads = True
            return False
        if self.lines and entry.line is None:
            entry = msgspec.structs.replace(entry, line=stacks.users_line())
        number = self._numbers.get(entry)
        self._add(self._new(entry, entry) if number is None else number, -1)
        self.launched |= entry.kind in ("operator", "graph")
        return True

    def record_kernel(
        self,
        name: str,
        reads: Sequence[Tensor],
        writes: Sequence[Tensor],
        work: Sequence[Shape] | None = None,
    ) -> None:
        """Record a kernel `name` that is not an operator of torch.

        `work` are the shapes that determine its computation, if they differ from those of `reads`.
        """
        if local.quiet:
            return
        dtype = next((tensor.dtype for tensor in (*reads, *writes) if tensor.is_floating_point()), "")
        self.event(
            Entry(
                name=name,
                dtype=str(dtype).removeprefix("torch."),
                inputs=tuple(work) if work is not None else _shapes(reads),
                outputs=_shapes(writes),
                tensors=len(reads),
                elements=sum(t.numel() for t in reads),
                reads=sum(map(_bytes, reads)),
                writes=sum(map(_bytes, writes)),
                backward=local.backward != HOST,
                optimizer=self.optimizing,
                compiled=is_compiled(),
            )
        )

    def fork(self) -> ProgrammeRecorder:
        """Return a recorder for a graph capture, whose work is launched later, if at all."""
        return ProgrammeRecorder(self.gpu, self.node, self.lines)

    def launched_so_far(self) -> list[Entry]:
        """Return the kernels and copies of this segment, in order."""
        return [entry for entry in self.entries_since(0) if entry.kind in ("operator", "copy", "collective")]

    def entries_since(self, position: int) -> list[Entry]:
        """Return the entries of this segment from `position` on, in order."""
        return [self._segments.entry(number) for number in self._segments.items[position:]]

    def obstacle(self, action: str, change: str) -> None:
        """Record an action that no captured graph can hold, unless `change` is made."""
        if self.lines:
            self.event(Entry(kind="obstacle", name=action, detail=change, optimizer=self.optimizing))

    def record_replay(self, launched: Sequence[Entry]) -> None:
        """Record the launch of a captured graph that runs `launched` on the device."""
        if get_ident() != self._thread:
            self._has_other_threads = True
            return
        self.event(Entry(kind="graph", name="cudaGraphLaunch", tensors=len(launched)))
        for entry in launched:
            self.event(msgspec.structs.replace(entry, graph=True))

    def record_stream_call(self, kind: Queued, stream_id: int, handle: int) -> None:
        """Record that a stream is chosen, or an event recorded or waited for.

        Events are numbered anew in each segment, so that steps with new events are alike.
        """
        stream = 0 if stream_id == 0 else self._streams.setdefault(stream_id, len(self._streams) + 1)
        if kind == "record":
            self._events[handle] = len(self._events)
        if kind == "stream":
            self.event(Entry(kind=kind, stream=stream))
        elif handle in self._events:
            self.event(Entry(kind=kind, stream=stream, number=self._events[handle]))

    @property
    def position(self) -> int:
        """The position of the next item: an operator that waits before it returns began here."""
        return len(self._segments.items)

    def _new(self, key: Hashable, entry: Entry) -> int:
        self._first_call(entry)
        return self._segments.new(key, entry)

    def _first_call(self, entry: Entry) -> None:
        """Keep the line whose entry makes a library initialize itself."""
        line = None
        library = _library(entry)
        if library and library not in self._libraries:
            line = entry.line or stacks.users_line()
        if line is not None:
            self._libraries[library] = line

    def record_arrival(self, dtype: str, shape: Shape) -> None:
        """Record a tensor copied from the host: a batch, or a part of one."""
        if shape and len(self._arrived) < _MAX_ARRIVALS:
            self._arrived.append((dtype, shape))

    def note_empty_cache(self) -> MemoryRecorder | None:
        """Note ``empty_cache()``; return the recorder for memory requests from now on, if any."""
        self._emptied += self._tick > 0
        if self._emptied == 1 and reports_storage_ends():
            self._request_recorder = MemoryRecorder(self.gpu, places=False)
        return self._request_recorder if self._emptied < _MAX_EMPTIED else None

    # -- segments ------------------------------------------------------------------------------------

    def note_evaluation(self) -> None:
        """Note that a model is evaluated in this segment."""
        self._evaluates = True

    def cut(self) -> None:
        """Begin the next segment at a mark that advances the tick."""
        self._segments.close(self._tick, self._evaluates, tuple(self._arrived))
        self._tick += 1
        self._evaluates, self._events, self._arrived, self.launched = False, {}, [], False

    def finish(self) -> None:
        """Stop recording."""
        if self._finished is None:
            self._finished = self.programme()

    def programme(self) -> Programme | None:
        """Return the record; None if no segment has ended."""
        if self._finished is not None:
            return self._finished
        kept = self._segments.programme()
        if kept is None:
            return None
        return msgspec.structs.replace(
            kept,
            gpu=gpu_limits(self.gpu),
            threads=self._has_other_threads,
            node=self.node,
            lines=self.lines,
            emptied=self._request_recorder.runs() if self._request_recorder is not None else (),
            libraries=self._libraries,
        )


def is_compiled() -> bool:
    """Whether the running code was compiled by the script; in backward, whether such code created the
    node."""
    if local.backward == HOST or not local.compiled_nodes:
        return local.compiled
    node = current_node()
    number = node._sequence_nr() if node is not None else -1
    return any(begin <= number < end for begin, end in reversed(local.compiled_nodes))


def _library(entry: Entry) -> str:
    """Return the library that initializes itself at the first such `entry` of a process; "" for none."""
    if entry.kind == "collective":
        return "" if entry.detail == "host" else "NCCL"
    if entry.name in _CUDNN:
        return "cuDNN" if torch.backends.cudnn.enabled else ""
    return "cuBLAS" if entry.name in MULTIPLIES else ""


def _describe(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, optimizing: bool) -> Entry:
    """Return the entry of an operator with these arguments."""
    inputs = list(trees.tensors((args, kwargs)))
    outputs = list(trees.tensors(out))
    written = [
        argument.alias_info is not None and argument.alias_info.is_write for argument in _arguments(func)
    ]
    mutated = [
        tensor
        for arg, is_written in zip(args, written, strict=False)
        if is_written
        for tensor in trees.tensors(arg)
    ]
    if mutated:
        outputs = mutated
    dtype = str(next((tensor.dtype for tensor in (*inputs, *outputs)), "")).removeprefix("torch.")
    return Entry(
        name=_operator_name(func, args, kwargs),
        dtype=dtype,
        inputs=_shapes(inputs),
        outputs=_shapes(outputs),
        tensors=len(inputs),
        elements=sum(tensor.numel() for tensor in inputs),
        reads=sum(map(_bytes, inputs)),
        writes=sum(map(_bytes, outputs)),
        block=_ONE_WARP.get(func._schema.name, 0),
        tf32=_tf32(func._schema.name),
        backward=local.backward != HOST,
        optimizer=optimizing,
        regraded=local.backward != HOST and torch.is_grad_enabled(),
        compiled=is_compiled(),
        causal=_flag(func, args, kwargs, "is_causal"),
        channels_last=id(func) in _IMAGES and channels_last(args),
        order=compare_order(args, out)
        if id(func) in _COPIES
        else compare_with_rows(args[0])
        if id(func) in _ROWS
        else "",
    )


def _operator_name(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the operator's name; for a batch norm without statistics, that of the variant that never takes
    them."""
    name = str(func._schema.name)
    if name in _NORMS and not _flag(func, args, kwargs, "training"):
        return "aten::_native_batch_norm_legit_no_training"
    return name


_NORMS = frozenset({"aten::native_batch_norm", "aten::_native_batch_norm_legit", "aten::cudnn_batch_norm"})


def _flag(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> bool:
    """Return the boolean argument of that name; False if there is none."""
    names = [argument.name for argument in _arguments(func)]
    if name not in names:
        return False
    position = names.index(name)
    return bool(args[position] if position < len(args) else kwargs.get(name, False))


def _arguments(func: Any) -> Any:
    return func._schema.arguments


def _shapes(tensors: Sequence[Tensor]) -> tuple[tuple[int, ...], ...]:
    kept = tensors if len(tensors) <= _MAX_SHAPES else tensors[:_KEPT_OF_LONG_LIST]
    return tuple(tuple(map(int, tensor.shape)) for tensor in kept)


def _bytes(tensor: Tensor) -> int:
    """Return the bytes of `tensor` in memory: an expanded one has more elements than memory."""
    size = tensor.numel() * tensor.element_size()
    try:
        return min(size, tensor.untyped_storage().nbytes())
    except (NotImplementedError, RuntimeError):
        return size


def _tf32(name: str) -> bool:
    """Whether torch's settings allow TF32 for this operator's fp32 matrix work."""
    backends = torch.backends
    allowed = (
        backends.cudnn.allow_tf32 if "conv" in name or "cudnn" in name else backends.cuda.matmul.allow_tf32
    )
    return bool(allowed)
