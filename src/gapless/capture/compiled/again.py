"""The calls of a run, made again through the compiler in their order: what it makes of each callable."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch

from gapless import trees
from gapless.capture.compiled import machine
from gapless.capture.compiled.graphs import Backend, Graphs
from gapless.capture.compiled.others import without_others
from gapless.capture.compiled.watching import Heard, Watch
from gapless.emulation.compiled.backends import named, uses_cudagraphs
from gapless.emulation.compiled.calls import Call, Calls, Target
from gapless.emulation.compiled.reach import CALLS
from gapless.emulation.compiled.signatures import Gone, Rebuilder
from gapless.emulation.emulator import Emulator
from gapless.emulation.support import stacks
from gapless.model import Compiled, SourceLine, user_line
from gapless.model.compiled import Outside
from gapless.torch_internals import C, path

_CACHED = "_cuda_cudaCachingAllocator_is_enabled"
_UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"


class Pass(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What came of it; `cut` is the number of calls that were not made for want of time."""

    compiled: tuple[Compiled, ...] = ()
    cut: int = 0


class _TimeOver(BaseException):
    """The time for the pass is over."""


@dataclass
class _Subject:
    """A target, or several of the same name and place, with what was found of them."""

    name: str
    line: SourceLine | None
    options: tuple[str, ...]
    targets: list[Target] = field(default_factory=list)
    heard: Heard = field(default_factory=Heard)
    graphs: Graphs = field(default_factory=Graphs)
    captured: set[int] = field(default_factory=set)
    made: int = 0
    failed: str = ""


def compile_again(emulator: Emulator, seconds: float, on_gpu: bool = True) -> Pass:
    """Compile what the run of `emulator` compiled, for at most `seconds` of the CPU's time; in a copy of the
    process, which is good for nothing else afterwards. Where it is not `on_gpu`, for a compiler all tensors
    are on the CPU.
    """
    calls = emulator.compiled
    cached = bool(getattr(C, _CACHED)()) and _UNCACHED not in os.environ
    emulator.leave_in_copy()
    _silence()
    calls.copies.place(emulator.core.placement.put)
    places = machine.enter(emulator.core, on_gpu)
    hidden = (target.hidden for target in calls.targets if target.hidden is not None)
    without_others(module for one in hidden for root in one.roots for module in root.modules())
    return _Pass(emulator, calls, seconds, places, cached).result()


def _silence() -> None:
    """What the user's code prints was printed in the run."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    warnings.simplefilter("ignore")
    logging.disable(logging.NOTSET)
    logging.getLogger("torch").handlers.clear()
    logging.getLogger("torch").addHandler(logging.NullHandler())


class _Pass:
    def __init__(
        self, emulator: Emulator, calls: Calls, seconds: float, places: machine.Places, cached: bool
    ) -> None:
        self._cached = cached
        self._places, self._calls, self._seconds = places, calls, seconds
        self._values = not emulator.core.dry
        self._dynamo = importlib.import_module(path("dynamo"))
        self._watch = Watch()
        self._subjects: dict[Any, _Subject] = {}
        self._of: dict[int, _Subject] = {}
        self._backends: list[Backend] = []
        self._now = Graphs()
        for target in calls.targets:
            self._add(target)

    def _add(self, target: Target) -> None:
        name, line = name_of(target), user_line(stacks.resolve(target.place))
        options = options_of(target)
        key = name, line, options
        subject = self._subjects.setdefault(key, _Subject(name, line, options))
        subject.targets.append(target)
        self._of[id(target)] = subject

    def result(self) -> Pass:
        """Make the calls, and say what came of them."""
        self._watch.start()
        for target in self._calls.targets:
            self._prepare(target)
        made = 0
        with suppress(_TimeOver), _limited(self._seconds):
            for call in self._calls.kept:
                self._make(call)
                made += 1
        return Pass(
            compiled=tuple(self._told(one) for one in self._subjects.values()),
            cut=len(self._calls.kept) - made,
        )

    def _prepare(self, target: Target) -> None:
        """Compile `target` for good, with a backend that takes graphs down."""
        name, args, kwargs = target.settings
        original = kwargs.get("backend", args[0] if args else "inductor")
        backend = Backend(original, self._places, lambda: self._now, self._values, self._cached)
        for known in self._backends:
            if known == backend:
                backend = known
        self._backends.append(backend)
        kwargs = {one: value for one, value in kwargs.items() if one not in ("backend", "rebuild_ctx")}
        try:
            made = getattr(self._dynamo, name)(backend, *args[1:], **kwargs)
            inner = _alone(target)
            real = made(inner)
            target.real = real.forward if isinstance(inner, torch.nn.Module) else real
        except Exception as error:
            self._of[id(target)].failed = _short(error)

    def _make(self, call: Call) -> None:
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
            args = [rebuilt(one) for one in call.args]
            kwargs = {name: rebuilt(one) for name, one in call.kwargs.items()}
        except Gone:
            return
        subject.made += 1
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(call.modes.inference))
            stack.enter_context(torch.set_grad_enabled(call.modes.grad))
            if call.modes.autocast is not None:
                stack.enter_context(torch.autocast("cuda", call.modes.autocast))
            if call.modes.stance:
                stack.enter_context(torch.compiler.set_stance(call.modes.stance))
            try:
                self._returned(subject, target.real(*args, **kwargs))
            except Exception as error:
                self._failed(target, subject, error)

    def _returned(self, subject: _Subject, made: Any) -> None:
        """Which of the tensors it returns are in memory of CUDA graphs."""
        for at, one in enumerate(trees.tensors(made)):
            with suppress(NotImplementedError, RuntimeError):
                if one.untyped_storage()._cdata in subject.graphs.managed:
                    subject.captured.add(at)

    def _failed(self, target: Target, subject: _Subject, error: BaseException) -> None:
        """Of a copy nothing is said but what the compiler says: that it does not run may be the copy's."""
        kinds = importlib.import_module(f"{path('dynamo')}.exc")
        if isinstance(error, kinds.Unsupported | kinds.UserError):
            self._watch.refused(error)
        elif target.copied:
            target.real = None
            return
        subject.failed = _short(error)

    def _beside(self, tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self._places.place(tensor, self._places(other))

    def _told(self, subject: _Subject) -> Compiled:
        heard, graphs = subject.heard, subject.graphs
        raises = any(one.raises for one in heard.breaks.values())
        return Compiled(
            name=subject.name,
            line=subject.line,
            options=subject.options,
            calls=sum(target.number for target in subject.targets),
            signatures=sum(len(target.seen) for target in subject.targets),
            compiled=subject.made,
            graphs=graphs.all,
            shapes=len(graphs.runs),
            dynamic=graphs.dynamic,
            scalars=graphs.scalars,
            breaks=tuple(heard.breaks.values()),
            recompiles=tuple(heard.recompiles.values()),
            outside=(*graphs.outside.values(), *_overwritten(subject)),
            limit=heard.limit,
            limited=heard.limited,
            failed=heard.unable or ("" if raises else subject.failed),
        )


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise `_TimeOver` in the block once it has computed for so long, on however busy a machine."""

    def over(*_: object) -> None:
        raise _TimeOver

    before = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _overwritten(subject: _Subject) -> Iterator[Outside]:
    """Where the run used results of CUDA graphs after a later call."""
    used = [one for target in subject.targets for one in target.overwritten]
    places = dict.fromkeys(user_line(stack) for at, stack in used if at in subject.captured)
    for line in places:
        yield Outside(skip="output-overwritten", line=line)


def name_of(target: Target) -> str:
    """What the user calls it: a module's class, a function's name."""
    module = target.module
    if module is not None and getattr(target.inner, "__name__", "forward") in (*CALLS, "forward"):
        return type(module).__name__
    name = getattr(target.inner, "__qualname__", type(target.inner).__name__)
    return str(name).replace("<locals>.", "").removeprefix("<module>.")


def options_of(target: Target) -> tuple[str, ...]:
    """The options that differ from torch's own, as they are written."""
    _, args, kwargs = target.settings
    backend = kwargs.get("backend", args[0] if args else "inductor")
    found = []
    if kwargs.get("nopython"):
        found.append("fullgraph=True")
    if kwargs.get("dynamic") is not None:
        found.append(f"dynamic={kwargs['dynamic']}")
    config = getattr(backend, "config", {})
    if uses_cudagraphs(backend) and named(backend) == "inductor":
        found.append('mode="max-autotune"' if config.get("max_autotune") else 'mode="reduce-overhead"')
    elif isinstance(config, dict) and config.get("max_autotune"):
        found.append('mode="max-autotune-no-cudagraphs"')
    if named(backend) not in ("inductor", ""):
        found.append(f'backend="{named(backend)}"')
    return tuple(found)


def _alone(target: Target) -> Any:
    """What is to be compiled: of a module that ranks hold together, without what they say to each other in
    forward, as the others are not here to answer."""
    module = target.module
    wrapper = getattr(torch.nn.parallel, "DistributedDataParallel", None)
    if wrapper is not None and isinstance(module, wrapper):
        module.require_forward_param_sync = False
    if module is not None and getattr(target.inner, "__name__", "") in CALLS[1:]:
        return module
    return target.inner


def _short(error: BaseException) -> str:
    """The error in one line."""
    text = str(error).strip().split("\n", 1)[0]
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__
