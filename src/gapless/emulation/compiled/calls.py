"""`Calls`: the compiled callables of a run, and the calls of them that differ, in order."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from types import FunctionType
from typing import Any

import torch

from gapless.emulation.compiled.backends import named, uses_cudagraphs
from gapless.emulation.compiled.copies import Copies, DeviceOf, Uncopied
from gapless.emulation.compiled.hidden import Attributes, Changes, Hidden, State
from gapless.emulation.compiled.replays import Replays
from gapless.emulation.compiled.signatures import Keeper, settled, signature
from gapless.emulation.support import stacks
from gapless.emulation.support.local import local
from gapless.emulation.support.patches import Patches
from gapless.model.source import Stack
from gapless.torch_internals import DisableTorchFunction, sequence_number

REPEATS = 10
"""How often a call of the same signature is kept: what depends on values may be compiled anew each time, and
the compiler gives up after eight."""
_MOST = 300

Settings = tuple[str, tuple[Any, ...], dict[str, Any]]
"""The function of ``torch._dynamo`` that is to compile, and its arguments."""


@dataclass(frozen=True)
class Modes:
    """What is on around a call: gradients, inference mode, the dtype of autocast on the GPU (None: off), what
    the script has told the compiler to do in place of compiling (``"eager_on_recompile"``)."""

    grad: bool
    inference: bool
    autocast: torch.dtype | None
    stance: str = ""

    @staticmethod
    def now(stance: str) -> Modes:
        on = torch.is_autocast_enabled("cuda")
        return Modes(
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
class Target:
    """One callable that was compiled, by `settings`.

    `place` is where that was asked for; it `captures` CUDA graphs or not, `generates` code or runs graphs as
    they stand, and `overwritten` are results of
    theirs that were used too late, by their number and place. Once it is compiled for good, `real` takes its
    calls. It is `copied` when the script has dropped it and the compiler is to have another like it.
    """

    calls: Calls
    inner: Any
    settings: Settings
    place: stacks.RawStack
    captures: bool = False
    generates: bool = False
    overwritten: dict[tuple[int, Stack], None] = field(default_factory=dict)
    seen: dict[Any, int] = field(default_factory=dict)
    number: int = 0
    real: Callable[..., Any] | None = None
    hidden: Hidden | None = None
    modules: frozenset[int] = frozenset()
    kept: list[Call] = field(default_factory=list)
    copied: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.real is not None:
            return self.real(*args, **kwargs)
        calls = self.calls
        if local.compiled:
            return self.inner(*args, **kwargs)
        calls.heard(self, args, kwargs)
        begin = sequence_number()
        local.compiled = True
        local.constants = {} if self.generates else None
        try:
            return self._captured(args, kwargs) if self.captures else self.inner(*args, **kwargs)
        finally:
            local.compiled, local.constants = False, None
            local.compiled_nodes.append((begin, sequence_number()))

    def _captured(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        replays = self.calls.replays
        replays.begin()
        made = self.inner(*args, **kwargs)
        replays.end(self, (args, kwargs), made)
        return made

    @property
    def module(self) -> torch.nn.Module | None:
        """The module that is compiled, if it is one (or a method of one)."""
        owner = getattr(self.inner, "__self__", self.inner)
        return owner if isinstance(owner, torch.nn.Module) else None


class Handle:
    """What the script calls, and drops when it has no more use for it: it alone keeps its target alive."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._target(*args, **kwargs)

    def __del__(self) -> None:
        self._target.calls.over(self._target)

    def copied_by(self, copy: Callable[[Any], Any]) -> Handle:
        """Another like it, of a copy of what it calls, for somebody who calls it in turn."""
        target = self._target
        return Handle(replace(target, inner=copy(target.inner), hidden=None, seen={}, kept=[]))


@dataclass(frozen=True)
class Call:
    """A call to be made again: the `order`-th of all, and the `number`-th of its target's; from `place`."""

    order: int
    of: weakref.ref[Target]
    number: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    modes: Modes
    state: State
    changes: Changes
    place: stacks.RawStack

    @property
    def target(self) -> Target:
        """What is called, which somebody else keeps alive."""
        target = self.of()
        assert target is not None
        return target

    def settled(self, target: Target, copy: Callable[[Any], Any]) -> Call:
        """The same call of `target`, with copies in place of what the script still has."""
        args, kwargs, contents = (
            settled(part, copy) for part in (self.args, self.kwargs, self.state.containers)
        )
        state = replace(self.state, containers=contents)
        return replace(self, of=weakref.ref(target), args=args, kwargs=kwargs, state=state)


class Calls:
    """Takes down each new kind of call, and the first few of each kind.

    `device_of` says where tensors are; without `values` (a dry run) only shapes are kept. Unless they are
    `wanted`, for a compiler to have them after the run, nothing is kept. Nothing of the script's is kept
    alive: of what it drops the last made at each place is copied.
    """

    def __init__(self, device_of: DeviceOf, values: bool = True, wanted: bool = True) -> None:
        self.left_out = 0
        self.failed = ""
        self.copies = Copies(device_of, values)
        self.attributes = Attributes(self.copies)
        self.replays = Replays()
        self.stance: Callable[[], str] = str
        self.wanted = wanted
        self.ending: Callable[[], bool] = lambda: False  # whether the script is being stopped, and drops all
        self.uncopied = ""
        """Why something that the script has dropped could not be copied."""
        self._alive: list[weakref.ref[Target]] = []
        self._dropped: list[Target] = []
        self._order = 0
        self._device_of = device_of
        self._patches: Patches | None = None

    def install(self, patches: Patches) -> None:
        """Look on at modules once something is compiled, until `patches` are undone."""
        self._patches = patches

    @property
    def targets(self) -> list[Target]:
        """What has been called and the script still has, and the last at each place of what it has dropped;
        in the order of their first calls."""
        alive = [target for reference in self._alive if (target := reference()) is not None]
        return sorted((*self._dropped, *alive), key=lambda target: target.kept[0].order if target.kept else 0)

    @property
    def kept(self) -> list[Call]:
        """Their calls, in order."""
        return sorted((call for target in self.targets for call in target.kept), key=lambda call: call.order)

    def compiled(self, inner: Any, settings: Settings) -> Handle:
        """`inner` is compiled by the caller's callers."""
        if not self._order and self._patches is not None and self.wanted:
            self.attributes.install(self._patches)
        self._order += 1
        _, args, kwargs = settings
        backend = kwargs.get("backend", args[0] if args else "inductor")
        generates = named(backend) == "inductor"
        return Handle(Target(self, inner, settings, stacks.capture(1), uses_cudagraphs(backend), generates))

    def over(self, target: Target) -> None:
        """The script has dropped `target`: copy it, if no other was made at the same place."""
        if target.hidden is None or sys.is_finalizing():
            return
        self._alive = [reference for reference in self._alive if reference() not in (target, None)]
        if self.ending():
            self._dropped.append(target)
        elif all(other.place != target.place for other in self.targets):
            try:
                self._dropped.append(self._copied(target))
            except Uncopied as error:
                self.uncopied = str(error)

    def _copied(self, target: Target) -> Target:
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
        other.hidden = target.hidden.copied(copy)
        other.kept = [call.settled(other, copy) for call in target.kept]
        return other

    def heard(self, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """`target` is called: keep the call where it is of a new kind, or one of the first of its kind."""
        target.number += 1
        if self.failed or not self.wanted:
            return
        try:
            with DisableTorchFunction():
                self._heard(target, args, kwargs)
        except Exception as error:  # arguments are anybody's objects, and the script is not to fail for them
            self.failed = f"{type(error).__name__}: {error}"

    def _heard(self, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        modes = Modes.now(self.stance())
        if not modes.compiles:
            return
        if target.hidden is None:
            self._begin(target, (*args, *kwargs.values()))
        key = self._key(target, args, kwargs, modes)
        times = target.seen.get(key, 0)
        if times >= REPEATS:
            return
        target.seen[key] = times + 1
        if sum(len(other.kept) for other in self.targets) >= _MOST:
            self.left_out += 1
            return
        self._keep(target, args, kwargs, modes)

    def _begin(self, target: Target, given: tuple[Any, ...]) -> None:
        self._dropped = [other for other in self._dropped if other.place != target.place]
        self._alive.append(weakref.ref(target))
        target.hidden = Hidden(target.inner, self.copies, given)
        modules = [module for root in target.hidden.roots for module in root.modules()]
        target.modules = frozenset(map(id, modules))
        self.attributes.begin(modules)

    def _key(self, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any], modes: Modes) -> Any:
        module, hidden = target.module, target.hidden
        assert hidden is not None
        attributes = self.attributes
        return (
            signature((args, kwargs), self._device_of, followed=hidden.followed),
            hidden.key(),
            module.training if module is not None else None,
            attributes.pending(target.modules) if attributes.waiting else (),
            modes,
        )

    def _keep(self, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any], modes: Modes) -> None:
        assert target.hidden is not None
        keep = Keeper(self.copies, target.hidden.followed)
        self._order += 1
        target.kept.append(
            Call(
                self._order,
                weakref.ref(target),
                target.number,
                tuple(map(keep, args)),
                {name: keep(one) for name, one in kwargs.items()},
                modes,
                target.hidden.state(keep),
                self.attributes.taken(),
                stacks.capture(1),
            )
        )


def _backend(copy: Callable[[Any], Any], value: Any) -> Any:
    """A setting of a compilation: what the user has written as a function is copied."""
    return copy(value) if isinstance(value, FunctionType | partial) else value
