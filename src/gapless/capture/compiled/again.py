"""Repeat the calls of a run through the compiler, in order, and record what it makes of each callable."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from gapless import torch_internals, trees
from gapless.capture.compiled import machine
from gapless.capture.compiled.graphs import RecordedGraphs, RecordingBackend
from gapless.capture.compiled.watching import CompilerEvents, CompilerWatch
from gapless.emulation.compiled.backends import backend_name, uses_cudagraphs
from gapless.emulation.compiled.compiled_calls import CompiledCall, CompiledCalls, CompiledTarget
from gapless.emulation.compiled.reach import CALLS
from gapless.emulation.compiled.signatures import ArgumentGone, Rebuilder
from gapless.emulation.emulator import Emulator
from gapless.emulation.support import stacks
from gapless.model import Compiled, SourceLine, user_line
from gapless.model.compiled import Outside
from gapless.torch_internals import C, path

_CACHED = "_cuda_cudaCachingAllocator_is_enabled"
_UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"


class Pass(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The result of the compile pass; `cut` is the number of calls skipped for lack of time."""

    compiled: tuple[Compiled, ...] = ()
    cut: int = 0


class _TimeOver(BaseException):
    """The pass has used up its time."""


@dataclass
class _Subject:
    """One or more targets of the same name, place and options, with what was recorded about them."""

    name: str
    line: SourceLine | None
    options: tuple[str, ...]
    targets: list[CompiledTarget] = field(default_factory=list)
    heard: CompilerEvents = field(default_factory=CompilerEvents)
    graphs: RecordedGraphs = field(default_factory=RecordedGraphs)
    captured: set[int] = field(default_factory=set)
    calls_made: int = 0
    failed: str = ""


def compile_again(emulator: Emulator, seconds: float, on_gpu: bool = True) -> Pass:
    """Compile what the run of `emulator` compiled, within `seconds` of CPU time.

    Call it in a copy of the process, which is unusable afterwards. Unless `on_gpu`, the compiler takes all
    tensors to be on the CPU.
    """
    calls = emulator.compiled
    cached = bool(getattr(C, _CACHED)()) and _UNCACHED not in os.environ
    emulator.leave_in_copy()
    _silence()
    calls.copies.place(emulator.core.placement.put)
    places = machine.enter(emulator.core, on_gpu)
    hidden = (target.hidden for target in calls.targets if target.hidden is not None)
    without_others(module for state in hidden for root in state.roots for module in root.modules())
    return _Pass(emulator, calls, seconds, places, cached).result()


def _silence() -> None:
    """Discard the output of the user's code: it was printed during the run."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    warnings.simplefilter("ignore")
    logging.disable(logging.NOTSET)
    logging.getLogger("torch").handlers.clear()
    logging.getLogger("torch").addHandler(logging.NullHandler())


class _Pass:
    def __init__(
        self, emulator: Emulator, calls: CompiledCalls, seconds: float, places: machine.Places, cached: bool
    ) -> None:
        self._cached = cached
        self._places, self._calls, self._seconds = places, calls, seconds
        self._values = not emulator.core.dry
        self._dynamo = importlib.import_module(path("dynamo"))
        self._watch = CompilerWatch()
        self._subjects: dict[Any, _Subject] = {}
        self._of: dict[int, _Subject] = {}
        self._backends: list[RecordingBackend] = []
        self._now = RecordedGraphs()
        for target in calls.targets:
            self._add(target)

    def _add(self, target: CompiledTarget) -> None:
        name, line = name_of(target), user_line(stacks.resolve(target.place))
        options = options_of(target)
        key = name, line, options
        subject = self._subjects.setdefault(key, _Subject(name, line, options))
        subject.targets.append(target)
        self._of[id(target)] = subject

    def result(self) -> Pass:
        """Make the calls and return the results."""
        self._watch.start()
        for target in self._calls.targets:
            self._prepare(target)
        calls_made = 0
        with suppress(_TimeOver), _time_limit(self._seconds):
            for call in self._calls.kept:
                self._make(call)
                calls_made += 1
        return Pass(
            compiled=tuple(self._to_result(subject) for subject in self._subjects.values()),
            cut=len(self._calls.kept) - calls_made,
        )

    def _prepare(self, target: CompiledTarget) -> None:
        """Compile `target` with a backend that records graphs."""
        name, args, kwargs = target.settings
        original = kwargs.get("backend", args[0] if args else "inductor")
        backend = RecordingBackend(original, self._places, lambda: self._now, self._values, self._cached)
        for other in self._backends:
            if other == backend:
                backend = other
        self._backends.append(backend)
        kwargs = {
            option: value for option, value in kwargs.items() if option not in ("backend", "rebuild_ctx")
        }
        try:
            compile_target = getattr(self._dynamo, name)(backend, *args[1:], **kwargs)
            inner = _without_sync(target)
            real = compile_target(inner)
            target.real = real.forward if isinstance(inner, torch.nn.Module) else real
        except Exception as error:
            self._of[id(target)].failed = _error_line(error)

    def _make(self, call: CompiledCall) -> None:
        target, subject = call.target, self._of[id(call.target)]
        if target.real is None or subject.failed:
            return
        watch = self._watch
        watch.heard, watch.place, watch.number = subject.heard, stacks.resolve(call.place), call.number
        self._now = subject.graphs
        self._now.managed.clear()
        for held, name, value in call.changes:
            for module in held.all():
                with suppress(Exception):  # anybody's object
                    if getattr(module, name, None) != value:
                        setattr(module, name, value)
        rebuilt = Rebuilder(self._places.place, self._values)
        if target.hidden is not None:
            target.hidden.put(call.state, self._beside, rebuilt)
        try:
            args = [rebuilt(value) for value in call.args]
            kwargs = {name: rebuilt(value) for name, value in call.kwargs.items()}
        except ArgumentGone:
            return
        subject.calls_made += 1
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(call.modes.inference))
            stack.enter_context(torch.set_grad_enabled(call.modes.grad))
            if call.modes.autocast is not None:
                stack.enter_context(torch.autocast("cuda", call.modes.autocast))
            if call.modes.stance:
                stack.enter_context(torch.compiler.set_stance(call.modes.stance))
            try:
                self._note_graph_outputs(subject, target.real(*args, **kwargs))
            except Exception as error:
                self._handle_error(target, subject, error)

    def _note_graph_outputs(self, subject: _Subject, output: Any) -> None:
        """Note which returned tensors are in memory of CUDA graphs."""
        for at, tensor in enumerate(trees.tensors(output)):
            with suppress(NotImplementedError, RuntimeError):
                if tensor.untyped_storage()._cdata in subject.graphs.managed:
                    subject.captured.add(at)

    def _handle_error(self, target: CompiledTarget, subject: _Subject, error: BaseException) -> None:
        """Record a failure; of a copied target only the compiler's own errors count, others may be the copy's
        fault."""
        kinds = importlib.import_module(f"{path('dynamo')}.exc")
        if isinstance(error, kinds.Unsupported | kinds.UserError):
            self._watch.record_error(error)
        elif target.copied:
            target.real = None
            return
        subject.failed = _error_line(error)

    def _beside(self, tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self._places.place(tensor, self._places(other))

    def _to_result(self, subject: _Subject) -> Compiled:
        heard, graphs = subject.heard, subject.graphs
        raises = any(graph_break.raises for graph_break in heard.breaks.values())
        return Compiled(
            name=subject.name,
            line=subject.line,
            options=subject.options,
            calls=sum(target.number for target in subject.targets),
            signatures=sum(len(target.times_by_key) for target in subject.targets),
            compiled=subject.calls_made,
            graphs=graphs.all,
            shapes=len(graphs.runs),
            dynamic=graphs.dynamic,
            scalars=graphs.scalars,
            breaks=tuple(heard.breaks.values()),
            recompiles=tuple(heard.recompiles.values()),
            outside=(*graphs.outside.values(), *_find_overwritten(subject)),
            limit=heard.limit,
            limited=heard.limited,
            failed=heard.unable or ("" if raises else subject.failed),
        )


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise `_TimeOver` in the block once it has used `seconds` of CPU time."""

    def over(*_: object) -> None:
        raise _TimeOver

    before = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _find_overwritten(subject: _Subject) -> Iterator[Outside]:
    """Yield the places where the run used results of CUDA graphs after a later call."""
    used = [use for target in subject.targets for use in target.overwritten]
    places = dict.fromkeys(user_line(stack) for at, stack in used if at in subject.captured)
    for line in places:
        yield Outside(skip="output-overwritten", line=line)


def name_of(target: CompiledTarget) -> str:
    """Return the user's name for a target: a module's class, or a function's name."""
    module = target.module
    if module is not None and getattr(target.inner, "__name__", "forward") in (*CALLS, "forward"):
        return type(module).__name__
    name = getattr(target.inner, "__qualname__", type(target.inner).__name__)
    return str(name).replace("<locals>.", "").removeprefix("<module>.")


def options_of(target: CompiledTarget) -> tuple[str, ...]:
    """Return the options that differ from torch's defaults, as source text."""
    _, args, kwargs = target.settings
    backend = kwargs.get("backend", args[0] if args else "inductor")
    options = []
    if kwargs.get("nopython"):
        options.append("fullgraph=True")
    if kwargs.get("dynamic") is not None:
        options.append(f"dynamic={kwargs['dynamic']}")
    config = getattr(backend, "config", {})
    if uses_cudagraphs(backend) and backend_name(backend) == "inductor":
        options.append('mode="max-autotune"' if config.get("max_autotune") else 'mode="reduce-overhead"')
    elif isinstance(config, dict) and config.get("max_autotune"):
        options.append('mode="max-autotune-no-cudagraphs"')
    if backend_name(backend) not in ("inductor", ""):
        options.append(f'backend="{backend_name(backend)}"')
    return tuple(options)


def _without_sync(target: CompiledTarget) -> Any:
    """Return what to compile; a DistributedDataParallel module must not broadcast in forward, as no rank
    answers."""
    module = target.module
    wrapper = getattr(torch.nn.parallel, "DistributedDataParallel", None)
    if wrapper is not None and isinstance(module, wrapper):
        module.require_forward_param_sync = False
    if module is not None and getattr(target.inner, "__name__", "") in CALLS[1:]:
        return module
    return target.inner


def _error_line(error: BaseException) -> str:
    """Return the error in one line of at most 300 characters."""
    text = str(error).strip().split("\n", 1)[0]
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__


def without_others(modules: Iterable[Any]) -> None:
    """Replace the backends of all process groups, including those of `modules`, by fakes.

    If the script already left its process group, a fake one of the same size is created.
    """
    if not dist.is_available():
        return
    groups = {id(group): group for group in _groups(modules)}
    if not groups and "WORLD_SIZE" not in os.environ:
        return
    fakes = importlib.import_module(path("fake_process_group"))
    for group in groups.values():
        with suppress(Exception):  # a kind of group that has no backend of its own
            fake = fakes.FakeProcessGroup._create_internal(group.rank(), group.size(), None)
            group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, fake)
    if not dist.is_initialized():
        rank, size = (
            int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"))
        )
        with suppress(Exception):  # the environment is anybody's
            dist.init_process_group("fake", store=dist.HashStore(), rank=rank, world_size=size)


def _groups(modules: Iterable[Any]) -> Iterable[Any]:
    yield from torch_internals.world.pg_map
    for module in modules:
        group = getattr(module, "process_group", None)
        if isinstance(group, dist.ProcessGroup):
            yield group
