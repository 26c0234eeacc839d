"""`Calls`: the compiled callables of a run, and the calls of them that differ, in order."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from gapless.emulation.compiled.backends import named, uses_cudagraphs
from gapless.emulation.compiled.hidden import Attributes, Changes, Hidden, State
from gapless.emulation.compiled.replays import Replays
from gapless.emulation.compiled.signatures import DeviceOf, Keeper, signature
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


@dataclass
class Target:
    """One callable that was compiled, by `settings`.

    `place` is where that was asked for; it `captures` CUDA graphs or not, `generates` code or runs graphs as
    they stand, and `overwritten` are results of
    theirs that were used too late, by their number and place. Once it is compiled for good, `real` takes its
    calls; it is `over` when the script has dropped it.
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
    over: bool = False
    hidden: Hidden | None = None
    modules: frozenset[int] = frozenset()

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
    """What the script calls, and drops when it has no more use for it."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._target(*args, **kwargs)


@dataclass(frozen=True)
class Call:
    """A call to be made again: of `target`, the `number`-th of all calls of it, from `place`."""

    target: Target
    number: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    modes: Modes
    state: State
    changes: Changes
    place: stacks.RawStack


class Calls:
    """Takes down each new kind of call, and the first few of each kind.

    `device_of` says where tensors are; without `values` (a dry run) only shapes are kept. Unless they are
    `wanted`, for a compiler to have them after the run, nothing is kept: what compiled code calls lives on
    with its calls, as only the objects themselves say what the compiler makes of them.
    """

    def __init__(self, device_of: DeviceOf, values: bool = True, wanted: bool = True) -> None:
        self.targets: list[Target] = []
        self.kept: list[Call] = []
        self.left_out = 0
        self.failed = ""
        self.attributes = Attributes()
        self.replays = Replays()
        self.stance: Callable[[], str] = str
        self.wanted = wanted
        self.lasting = True
        """Whether the last of those made at one place lives on when the script has dropped it, as it does at
        the end of a function."""
        self.ending: Callable[[], bool] = lambda: False  # whether the script is being stopped, and drops all
        self.dropped = 0
        self._device_of, self._values = device_of, values
        self._patches: Patches | None = None

    def install(self, patches: Patches) -> None:
        """Look on at modules once something is compiled, until `patches` are undone."""
        self._patches = patches

    def compiled(self, inner: Any, settings: Settings) -> Handle:
        """`inner` is compiled by the caller's callers."""
        if not self.targets and self._patches is not None and self.wanted:
            self.attributes.install(self._patches)
        _, args, kwargs = settings
        backend = kwargs.get("backend", args[0] if args else "inductor")
        generates = named(backend) == "inductor"
        target = Target(self, inner, settings, stacks.capture(1), uses_cudagraphs(backend), generates)
        handle, known = Handle(target), weakref.ref(target)
        weakref.finalize(handle, self._over, known).atexit = False
        return handle

    def _over(self, known: weakref.ref[Target]) -> None:
        """The script has dropped a target."""
        target = known()
        if target is not None and not self.ending():
            target.over = True
            if not self.lasting or any(
                one.place == target.place and one is not target for one in self.targets
            ):
                self._forget([target])

    def _forget(self, targets: list[Target]) -> None:
        """Keep nothing of these, which nobody can call any more."""
        gone = set(map(id, targets))
        if any(id(one) in gone for one in self.targets):
            self.dropped += 1
            self.targets = [one for one in self.targets if id(one) not in gone]
            self.kept = [one for one in self.kept if id(one.target) not in gone]

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
        if len(self.kept) >= _MOST:
            self.left_out += 1
            return
        self._keep(target, args, kwargs, modes)

    def _begin(self, target: Target, given: tuple[Any, ...]) -> None:
        self._forget([one for one in self.targets if one.over and one.place == target.place])
        self.targets.append(target)
        target.hidden = Hidden(target.inner, self._device_of, given)
        modules = [one for root in target.hidden.roots for one in root.modules()]
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
        keep = Keeper(self._device_of, self._values, target.hidden.followed)
        self.kept.append(
            Call(
                target,
                target.number,
                tuple(map(keep, args)),
                {name: keep(one) for name, one in kwargs.items()},
                modes,
                target.hidden.state(keep),
                self.attributes.taken(),
                stacks.capture(1),
            )
        )
