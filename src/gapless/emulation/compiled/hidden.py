"""What a compiled function depends on besides its arguments: closures, globals, attributes, optimizers.

Compilers guard on these, so a learning rate that changes at each step is compiled anew like a new argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from gapless.emulation.compiled.containers import Containers, again, names_of, owned
from gapless.emulation.compiled.copies import Copies, Held
from gapless.emulation.compiled.reach import NOTHING, Reached, content, is_record, reached
from gapless.emulation.support.local import local
from gapless.emulation.support.patches import Patches

_PLAIN = frozenset({int, float, bool, str, type(None)})
_MANY = 4096
_OFTEN = 16
_OWN = ("_compiled_call_impl", "_is_full_backward_hook")


@dataclass(frozen=True)
class State:
    """The values at one call, to be put back before it is made again."""

    cells: tuple[Any, ...]
    names: tuple[Any, ...]
    containers: tuple[Any, ...]
    groups: tuple[tuple[tuple[str, Any], ...], ...]
    wanted: tuple[bool, ...]
    gradients: tuple[bool, ...]
    empty: tuple[bool, ...]


class Hidden:
    """The plain values that `target` and what it calls read from closures, globals and objects, the lists and
    dictionaries there, and the settings of optimizers; `roots` are the modules, and `followed` the ids of the
    objects. `given` are the arguments of the first call."""

    def __init__(self, target: Any, copies: Copies, given: Iterable[Any]) -> None:
        reach = reached(target, given)
        self._records = [owner for record in reach.records if (owner := owned(record, copies))]
        self._cells = reach.cells
        self._names = [
            (owned(owner, copies), name)
            for owner, name in reach.names
            if type((owner if type(owner) is dict else vars(owner))[name]) in _PLAIN
        ]
        self._optimizers = list(map(copies.held, reach.optimizers))
        self._roots = list(map(copies.held, reach.modules))
        self._containers = Containers(reach, copies)
        self._parameters = list(map(copies.held, _parameters(reach)))
        self._telling = Telling()

    def copied(self, copy: Callable[[Any], Any]) -> Hidden:
        """The same of what `copy` makes of everything that is looked at."""
        other = Hidden.__new__(Hidden)
        other._cells = [copy(cell) for cell in self._cells]
        other._names = [(again(owner, copy), name) for owner, name in self._names]
        other._records, other._optimizers, other._roots, other._parameters = (
            [again(owner, copy) for owner in owners]
            for owners in (self._records, self._optimizers, self._roots, self._parameters)
        )
        other._containers = self._containers.copied(copy)
        other._telling = self._telling
        return other

    @property
    def followed(self) -> frozenset[int]:
        """The ids of the objects that are looked at."""
        return frozenset([id(record) for record in _there(self._records)])

    @property
    def roots(self) -> list[Any]:
        """The modules that are looked at."""
        return _there(self._roots)

    def key(self) -> tuple[Any, ...]:
        """What tells two states apart, cheap enough to be asked for at each call."""
        names = [_plain(names_of(owner).get(name)) for owner, name in self._names]
        cells = [_plain(content(cell)) for cell in self._cells]
        groups = self._groups() if self._optimizers else ()
        containers = self._containers.key()
        return self._telling((*names, *cells, *containers, *groups, self._wanted()))

    def _groups(self) -> tuple[tuple[tuple[str, Any], ...], ...]:
        return tuple(
            tuple((name, setting) for name, setting in group.items() if type(setting) in _PLAIN)
            for optimizer in _there(self._optimizers)
            for group in optimizer.param_groups
        )

    def _wanted(self) -> tuple[bool, ...]:
        """Which parameters want gradients: some are frozen on the way."""
        return tuple([getattr(held.alive(), "requires_grad", False) for held in self._parameters])

    def state(self, keep: Callable[[Any], Any]) -> State:
        """The values of now; `keep` copies what is in a container."""
        return State(
            tuple(map(_if_plain, map(content, self._cells))),
            tuple(_if_plain(names_of(owner).get(name)) for owner, name in self._names),
            self._containers.state(keep),
            self._groups(),
            self._wanted(),
            tuple(getattr(parameter(), "grad", None) is not None for parameter in self._parameters),
            tuple(not getattr(optimizer(), "state", ()) for optimizer in self._optimizers),
        )

    def put(self, state: State, placed: Callable[[Any, Any], Any], made: Callable[[Any], Any]) -> None:
        """Make everything as it was at `state`, gradients by zeros; `placed` puts one where its tensor is,
        and `made` makes anew what was kept of a container."""
        for cell, value in zip(self._cells, state.cells, strict=True):
            if type(content(cell)) in _PLAIN and type(value) in _PLAIN and value is not None:
                cell.cell_contents = value
        for (owner, name), value in zip(self._names, state.names, strict=True):
            names = names_of(owner)
            if type(value) in _PLAIN and name in names:
                names[name] = value
        self._containers.put(state.containers, made)
        optimizers = [optimizer() for optimizer in self._optimizers]
        groups = [group for optimizer in _there(self._optimizers) for group in optimizer.param_groups]
        for group, values in zip(groups, state.groups, strict=False):
            group.update(values)
        for parameter, wanted, there in zip(self._parameters, state.wanted, state.gradients, strict=True):
            _put_gradient(parameter(), wanted, there, placed)
        for optimizer, empty in zip(optimizers, state.empty, strict=False):
            if empty and optimizer is not NOTHING:
                optimizer.state.clear()


def _there(owners: Iterable[Any]) -> list[Any]:
    """Those that are held and have not ended, or their copies."""
    return [value for owner in owners if isinstance(owner, Held) and (value := owner()) is not NOTHING]


def _parameters(reach: Reached) -> list[Any]:
    groups = [group for optimizer in reach.optimizers for group in optimizer.param_groups]
    first = [parameter for group in groups for parameter in group["params"]]
    return first + [parameter for root in reach.modules for parameter in root.parameters()]


def _put_gradient(parameter: Any, wanted: bool, there: bool, placed: Callable[[Any, Any], Any]) -> None:
    if parameter is NOTHING:
        return
    if parameter.is_leaf:
        parameter.requires_grad_(wanted)
    if not there:
        parameter.grad = None
    elif parameter.grad is None:
        parameter.grad = placed(torch.zeros_like(parameter), parameter)


def _if_plain(value: Any) -> Any:
    return value if type(value) in _PLAIN else NOTHING


def _plain(value: Any) -> Any:
    return (type(value), value) if type(value) in _PLAIN else type(value)


class Telling:
    """Leaves out what has another value at nearly every call: a counter, a log. If the compiler guards on it,
    its limit on recompilations is reached by then; if not, it would have each call kept.

    >>> telling = Telling()
    >>> [telling((step, "mean")) for step in (*range(_OFTEN + 1), "any")][-2:]
    [('mean',), ('mean',)]
    """

    def __init__(self) -> None:
        self._alive: list[int] | None = None
        self._last: tuple[Any, ...] = ()
        self._changes: dict[int, int] = {}

    def __call__(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if self._alive is None:
            self._alive, self._last = list(range(len(values))), values
        found = tuple([values[at] for at in self._alive])
        if found != self._last:
            for at, new, old in zip(self._alive, found, self._last, strict=True):
                self._changes[at] = self._changes.get(at, 0) + (new != old)
            self._alive = [at for at in self._alive if self._changes.get(at, 0) < _OFTEN]
            self._last = tuple([values[at] for at in self._alive])
        return self._last


Changes = tuple[tuple[Held, str, Any], ...]
"""Plain attributes of modules that were set: the module, held weakly, the name, the value."""


class Attributes:
    """Plain attributes that the script sets on modules between calls of compiled code: modes, counters,
    temperatures. What compiled code sets itself, it will set again."""

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._pending: dict[tuple[int, str], tuple[Held, str, Any]] = {}
        self._initial: dict[tuple[int, str], tuple[Held, str, Any]] = {}

    def install(self, patches: Patches) -> None:
        """Look on from now on, until `patches` are undone."""
        real = torch.nn.Module.__setattr__

        def setattr_(module: Any, name: str, value: Any) -> None:
            if type(value) in _PLAIN and not local.compiled:
                before = module.__dict__.get(name, NOTHING)
                if before is not NOTHING and (type(before) is not type(value) or before != value):
                    self._changed(module, name, value)
            real(module, name, value)

        patches.set(torch.nn.Module, "__setattr__", setattr_)

    def _changed(self, module: Any, name: str, value: Any) -> None:
        if len(self._pending) < _MANY:
            self._pending[id(module), name] = self._copies.held(module), name, value

    def begin(self, modules: Iterable[Any]) -> None:
        """These are called for the first time: what they hold now is what their attributes were."""
        found: dict[int, Any] = {}
        for module in modules:
            found[id(module)] = module
            beside = (one for one in vars(module).values() if is_record(one))
            found.update({id(one): one for one in beside})
        for owner in found.values():
            with suppress(TypeError):  # no weak reference to it can be had
                reference = self._copies.held(owner)
                plain = {name: one for name, one in vars(owner).items() if type(one) in _PLAIN}
                self._initial.update(
                    {
                        (id(owner), name): (reference, name, one)
                        for name, one in plain.items()
                        if name not in _OWN
                    }
                )

    @property
    def waiting(self) -> bool:
        """Whether anything was set."""
        return bool(self._pending)

    def pending(self, inside: frozenset[int]) -> tuple[Any, ...]:
        """Those of the modules with these ids that are not modes, to tell calls apart."""
        return tuple(
            (key, value)
            for key, (_, name, value) in self._pending.items()
            if name != "training" and key[0] in inside
        )

    def taken(self) -> Changes:
        """What was set since this was last asked."""
        found = {**self._initial, **self._pending}
        self._initial.clear()
        self._pending.clear()
        return tuple(found.values())
