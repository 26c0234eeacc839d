"""Record the compiled callables of a run, and their calls that differ, in order."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from types import FunctionType
from typing import Any

import torch

from gapless.emulation.compiled.backends import backend_name, uses_cudagraphs
from gapless.emulation.compiled.copies import CannotCopy, Copies, DeviceOf
from gapless.emulation.compiled.hidden import Changes, HiddenInputs, HiddenValues, ModuleAttributes
from gapless.emulation.compiled.replays import GraphReplays
from gapless.emulation.compiled.signatures import ArgumentKeeper, settle, signature
from gapless.emulation.support import stacks
from gapless.emulation.support.local import local
from gapless.emulation.support.patches import Patches
from gapless.model.source import Stack
from gapless.torch_internals import DisableTorchFunction, sequence_number

MAX_REPEATS = 10
"""Most calls kept with the same signature: each may recompile if code depends on values, and the compiler
gives up after eight."""
_MAX_CALLS_KEPT = 300
"""Most calls kept in a run: they are made again after it, each with a copy of its arguments."""

Settings = tuple[str, tuple[Any, ...], dict[str, Any]]
"""The function of ``torch._dynamo`` that compiles, its args and its kwargs."""


@dataclass(frozen=True)
class CallModes:
    """Modes around a call: gradients, inference mode, the GPU's autocast dtype (None: off), the compiler's
    stance (such as ``"eager_on_recompile"``)."""

    grad: bool
    inference: bool
    autocast: torch.dtype | None
    stance: str = ""

    @staticmethod
    def now(stance: str) -> CallModes:
        on = torch.is_autocast_enabled("cuda")
        return CallModes(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.get_autocast_dtype("cuda") if on else None,
            stance,
        )

    @property
    def compiles(self) -> bool:
        """Whether anything is compiled at all."""
        return self.stance != "force_eager"


@dataclass(eq=False)
class CompiledTarget:
    """A callable compiled with `settings` at `place`.

    It `captures` CUDA graphs or not; `generates` says whether inductor generates code. `overwritten` lists
    results that were used after a replay overwrote them, by their number and place. Once really compiled,
    `real` takes its calls. `copied`: the script dropped it, and this is a copy for the compiler.
    """

    calls: CompiledCalls
    inner: Any
    settings: Settings
    place: stacks.RawStack
    captures: bool = False
    generates: bool = False
    overwritten: dict[tuple[int, Stack], None] = field(default_factory=dict)
    times_by_key: dict[Any, int] = field(default_factory=dict)
    number: int = 0
    real: Callable[..., Any] | None = None
    hidden: HiddenInputs | None = None
    modules: frozenset[int] = frozenset()
    kept: list[CompiledCall] = field(default_factory=list)
    copied: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.real is not None:
            return self.real(*args, **kwargs)
        calls = self.calls
        if local.compiled:
            return self.inner(*args, **kwargs)
        calls.record_call(self, args, kwargs)
        begin = sequence_number()
        local.compiled = True
        local.constants = {} if self.generates else None
        try:
            return self._call_with_graphs(args, kwargs) if self.captures else self.inner(*args, **kwargs)
        finally:
            local.compiled, local.constants = False, None
            local.compiled_nodes.append((begin, sequence_number()))

    def _call_with_graphs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        replays = self.calls.replays
        replays.begin()
        result = self.inner(*args, **kwargs)
        replays.end(self, (args, kwargs), result)
        return result

    @property
    def module(self) -> torch.nn.Module | None:
        """The compiled module (or the module of a compiled method), or None."""
        owner = getattr(self.inner, "__self__", self.inner)
        return owner if isinstance(owner, torch.nn.Module) else None


class CompiledHandle:
    """The object that the script calls; its target lives as long as it does."""

    def __init__(self, target: CompiledTarget) -> None:
        self._target = target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._target(*args, **kwargs)

    def __del__(self) -> None:
        self._target.calls.drop(self._target)

    def copied_by(self, copy: Callable[[Any], Any]) -> CompiledHandle:
        """Return a handle of a copy of the target, for copied code that calls it."""
        target = self._target
        return CompiledHandle(
            replace(target, inner=copy(target.inner), hidden=None, times_by_key={}, kept=[])
        )


@dataclass(frozen=True)
class CompiledCall:
    """A recorded call to repeat: the `order`-th of the run, the `number`-th of its target, from `place`."""

    order: int
    of: weakref.ref[CompiledTarget]
    number: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    modes: CallModes
    state: HiddenValues
    changes: Changes
    place: stacks.RawStack

    @property
    def target(self) -> CompiledTarget:
        """The called target; its owner keeps it alive."""
        target = self.of()
        assert target is not None
        return target

    def settle(self, target: CompiledTarget, copy: Callable[[Any], Any]) -> CompiledCall:
        """Return this call for `target`, with copies of the objects that the script still owns."""
        args, kwargs, contents = (
            settle(part, copy) for part in (self.args, self.kwargs, self.state.containers)
        )
        state = replace(self.state, containers=contents)
        return replace(self, of=weakref.ref(target), args=args, kwargs=kwargs, state=state)


class CompiledCalls:
    """Records the first few calls of each signature, for compiling after the run.

    `device_of` returns a tensor's device; without `values` (a dry run) only shapes are kept. Unless `wanted`,
    nothing is kept. The script's objects are held weakly: of the callables it drops, the last one made at
    each place is copied.
    """

    def __init__(self, device_of: DeviceOf, values: bool = True, wanted: bool = True) -> None:
        self.left_out = 0
        self.failed = ""
        self.copies = Copies(device_of, values)
        self.attributes = ModuleAttributes(self.copies)
        self.replays = GraphReplays()
        self.stance: Callable[[], str] = str
        self.wanted = wanted
        self.ending: Callable[[], bool] = lambda: False  # whether the script is ending and drops everything
        self.uncopied = ""
        """Why a callable that the script dropped could not be copied; "" if none."""
        self._alive: list[weakref.ref[CompiledTarget]] = []
        self._dropped: list[CompiledTarget] = []
        self._order = 0
        self._device_of = device_of
        self._patches: Patches | None = None

    def install(self, patches: Patches) -> None:
        """Watch modules' attributes once something is compiled, until `patches` are undone."""
        self._patches = patches

    @property
    def targets(self) -> list[CompiledTarget]:
        """Called targets that are alive, and the last dropped one of each place, in order of first calls."""
        alive = [target for reference in self._alive if (target := reference()) is not None]
        return sorted((*self._dropped, *alive), key=lambda target: target.kept[0].order if target.kept else 0)

    @property
    def kept(self) -> list[CompiledCall]:
        """The recorded calls of all targets, in order."""
        return sorted((call for target in self.targets for call in target.kept), key=lambda call: call.order)

    def compiled(self, inner: Any, settings: Settings) -> CompiledHandle:
        """Return a handle for `inner`, compiled by the caller's caller."""
        if not self._order and self._patches is not None and self.wanted:
            self.attributes.install(self._patches)
        self._order += 1
        _, args, kwargs = settings
        backend = kwargs.get("backend", args[0] if args else "inductor")
        generates = backend_name(backend) == "inductor"
        return CompiledHandle(
            CompiledTarget(self, inner, settings, stacks.capture(1), uses_cudagraphs(backend), generates)
        )

    def drop(self, target: CompiledTarget) -> None:
        """Copy `target`, which the script dropped, unless there is another from the same place."""
        if target.hidden is None or sys.is_finalizing():
            return
        self._alive = [reference for reference in self._alive if reference() not in (target, None)]
        if self.ending():
            self._dropped.append(target)
        elif all(other.place != target.place for other in self.targets):
            try:
                self._dropped.append(self._copy_target(target))
            except CannotCopy as error:
                self.uncopied = str(error)

    def _copy_target(self, target: CompiledTarget) -> CompiledTarget:
        copy = self.copies.copier()
        name, args, kwargs = target.settings
        other = replace(
            target,
            inner=copy(target.inner),
            settings=(name, tuple(map(partial(_backend, copy), args)), {
                name: _backend(copy, value) for name, value in kwargs.items()
            }),
            copied=True,
            kept=[],
        )  # fmt: skip
        assert target.hidden is not None
        other.hidden = target.hidden.copy_with(copy)
        other.kept = [call.settle(other, copy) for call in target.kept]
        return other

    def record_call(self, target: CompiledTarget, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record a call of `target`, if it is among the first of its signature."""
        target.number += 1
        if self.failed or not self.wanted:
            return
        try:
            with DisableTorchFunction():
                self._record(target, args, kwargs)
        except Exception as error:  # arguments are arbitrary objects; recording must not fail the script
            self.failed = f"{type(error).__name__}: {error}"

    def _record(self, target: CompiledTarget, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        modes = CallModes.now(self.stance())
        if not modes.compiles:
            return
        if target.hidden is None:
            self._begin(target, (*args, *kwargs.values()))
        key = self._key(target, args, kwargs, modes)
        times = target.times_by_key.get(key, 0)
        if times >= MAX_REPEATS:
            return
        target.times_by_key[key] = times + 1
        if sum(len(other.kept) for other in self.targets) >= _MAX_CALLS_KEPT:
            self.left_out += 1
            return
        self._keep(target, args, kwargs, modes)

    def _begin(self, target: CompiledTarget, arguments: tuple[Any, ...]) -> None:
        self._dropped = [other for other in self._dropped if other.place != target.place]
        self._alive.append(weakref.ref(target))
        target.hidden = HiddenInputs(target.inner, self.copies, arguments)
        modules = [module for root in target.hidden.roots for module in root.modules()]
        target.modules = frozenset(map(id, modules))
        self.attributes.begin(modules)

    def _key(
        self, target: CompiledTarget, args: tuple[Any, ...], kwargs: dict[str, Any], modes: CallModes
    ) -> Any:
        module, hidden = target.module, target.hidden
        assert hidden is not None
        attributes = self.attributes
        return (
            signature((args, kwargs), self._device_of, followed=hidden.followed_objects),
            hidden.key(),
            module.training if module is not None else None,
            attributes.pending(target.modules) if attributes.waiting else (),
            modes,
        )

    def _keep(
        self, target: CompiledTarget, args: tuple[Any, ...], kwargs: dict[str, Any], modes: CallModes
    ) -> None:
        assert target.hidden is not None
        keep = ArgumentKeeper(self.copies, target.hidden.followed_objects)
        self._order += 1
        target.kept.append(
            CompiledCall(
                self._order,
                weakref.ref(target),
                target.number,
                tuple(map(keep, args)),
                {name: keep(value) for name, value in kwargs.items()},
                modes,
                target.hidden.state(keep),
                self.attributes.take(),
                stacks.capture(1),
            )
        )


def _backend(copy: Callable[[Any], Any], value: Any) -> Any:
    """Copy a setting of a compilation if it is a user's function."""
    return copy(value) if isinstance(value, FunctionType | partial) else value
