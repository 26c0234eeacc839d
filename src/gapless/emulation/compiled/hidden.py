"""Record what a compiled function reads besides its arguments: closures, globals, attributes, optimizers.

Compilers guard on these: a learning rate that changes at each step recompiles like a new argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from gapless.emulation.compiled.containers import Containers, copy_owner, hold_owner, names_of
from gapless.emulation.compiled.copies import Copies, HeldObject
from gapless.emulation.compiled.reach import NOTHING, Reached, content, is_record, reach_of
from gapless.emulation.support.local import local
from gapless.emulation.support.patches import Patches

_PLAIN = frozenset({int, float, bool, str, type(None)})
_MAX_PENDING = 4096
"""Most attribute changes kept between two calls: bounds memory."""
_MAX_CHANGES = 16
"""Changes after which a value counts as volatile: above the compiler's limit of eight recompilations."""
_TORCH_ATTRIBUTES = ("_compiled_call_impl", "_is_full_backward_hook")


@dataclass(frozen=True)
class HiddenValues:
    """The values at one call, restored before the call is repeated."""

    cells: tuple[Any, ...]
    names: tuple[Any, ...]
    containers: tuple[Any, ...]
    groups: tuple[tuple[tuple[str, Any], ...], ...]
    wanted: tuple[bool, ...]
    gradients: tuple[bool, ...]
    empty: tuple[bool, ...]


class HiddenInputs:
    """Plain values and containers that `target` and its callees read from closures, globals and objects, and
    optimizer settings. `arguments` are those of the first call."""

    def __init__(self, target: Any, copies: Copies, arguments: Iterable[Any]) -> None:
        reach = reach_of(target, arguments)
        self._records = [owner for record in reach.records if (owner := hold_owner(record, copies))]
        self._cells = reach.cells
        self._names = [
            (hold_owner(owner, copies), name)
            for owner, name in reach.names
            if type((owner if type(owner) is dict else vars(owner))[name]) in _PLAIN
        ]
        self._optimizers = list(map(copies.held, reach.optimizers))
        self._roots = list(map(copies.held, reach.modules))
        self._containers = Containers(reach, copies)
        self._parameters = list(map(copies.held, _parameters(reach)))
        self._filter = ChangeFilter()

    def copy_with(self, copy: Callable[[Any], Any]) -> HiddenInputs:
        """Return the same inputs of the copies of all owners."""
        other = HiddenInputs.__new__(HiddenInputs)
        other._cells = [copy(cell) for cell in self._cells]
        other._names = [(copy_owner(owner, copy), name) for owner, name in self._names]
        other._records, other._optimizers, other._roots, other._parameters = (
            [copy_owner(owner, copy) for owner in owners]
            for owners in (self._records, self._optimizers, self._roots, self._parameters)
        )
        other._containers = self._containers.copy_with(copy)
        other._filter = self._filter
        return other

    @property
    def followed_objects(self) -> frozenset[int]:
        """Ids of the objects whose attributes are recorded."""
        return frozenset([id(record) for record in _living(self._records)])

    @property
    def roots(self) -> list[Any]:
        """The modules that are reached."""
        return _living(self._roots)

    def key(self) -> tuple[Any, ...]:
        """A hashable key of the current values, cheap enough to compute at each call."""
        names = [_guard_key(names_of(owner).get(name)) for owner, name in self._names]
        cells = [_guard_key(content(cell)) for cell in self._cells]
        groups = self._groups() if self._optimizers else ()
        containers = self._containers.key()
        return self._filter((*names, *cells, *containers, *groups, self._gradient_flags()))

    def _groups(self) -> tuple[tuple[tuple[str, Any], ...], ...]:
        return tuple(
            tuple((name, setting) for name, setting in group.items() if type(setting) in _PLAIN)
            for optimizer in _living(self._optimizers)
            for group in optimizer.param_groups
        )

    def _gradient_flags(self) -> tuple[bool, ...]:
        """Which parameters require gradients: some are frozen during training."""
        return tuple([getattr(held.alive(), "requires_grad", False) for held in self._parameters])

    def state(self, keep: Callable[[Any], Any]) -> HiddenValues:
        """Return the current values; `keep` copies entries of containers."""
        return HiddenValues(
            tuple(map(_if_plain, map(content, self._cells))),
            tuple(_if_plain(names_of(owner).get(name)) for owner, name in self._names),
            self._containers.state(keep),
            self._groups(),
            self._gradient_flags(),
            tuple(getattr(parameter(), "grad", None) is not None for parameter in self._parameters),
            tuple(not getattr(optimizer(), "state", ()) for optimizer in self._optimizers),
        )

    def put(
        self, state: HiddenValues, placed: Callable[[Any, Any], Any], rebuild: Callable[[Any], Any]
    ) -> None:
        """Restore the values saved in `state`, gradients as zeros; `placed` puts a gradient on its
        parameter's device, `rebuild` recreates entries of containers."""
        for cell, value in zip(self._cells, state.cells, strict=True):
            if type(content(cell)) in _PLAIN and type(value) in _PLAIN and value is not None:
                cell.cell_contents = value
        for (owner, name), value in zip(self._names, state.names, strict=True):
            names = names_of(owner)
            if type(value) in _PLAIN and name in names:
                names[name] = value
        self._containers.put(state.containers, rebuild)
        optimizers = [optimizer() for optimizer in self._optimizers]
        groups = [group for optimizer in _living(self._optimizers) for group in optimizer.param_groups]
        for group, values in zip(groups, state.groups, strict=False):
            group.update(values)
        for parameter, wanted, had_gradient in zip(
            self._parameters, state.wanted, state.gradients, strict=True
        ):
            _put_gradient(parameter(), wanted, had_gradient, placed)
        for optimizer, empty in zip(optimizers, state.empty, strict=False):
            if empty and optimizer is not NOTHING:
                optimizer.state.clear()


def _living(owners: Iterable[Any]) -> list[Any]:
    """The held objects that are alive, or their copies."""
    return [value for owner in owners if isinstance(owner, HeldObject) and (value := owner()) is not NOTHING]


def _parameters(reach: Reached) -> list[Any]:
    groups = [group for optimizer in reach.optimizers for group in optimizer.param_groups]
    first = [parameter for group in groups for parameter in group["params"]]
    return first + [parameter for root in reach.modules for parameter in root.parameters()]


def _put_gradient(
    parameter: Any, wanted: bool, had_gradient: bool, placed: Callable[[Any, Any], Any]
) -> None:
    if parameter is NOTHING:
        return
    if parameter.is_leaf:
        parameter.requires_grad_(wanted)
    if not had_gradient:
        parameter.grad = None
    elif parameter.grad is None:
        parameter.grad = placed(torch.zeros_like(parameter), parameter)


def _if_plain(value: Any) -> Any:
    return value if type(value) in _PLAIN else NOTHING


def _guard_key(value: Any) -> Any:
    return (type(value), value) if type(value) in _PLAIN else type(value)


class ChangeFilter:
    """Drops values that change at nearly every call, such as counters. If the compiler guards on one, its
    recompilation limit is reached by then; if not, it would make every call count as new.

    >>> stable = ChangeFilter()
    >>> [stable((step, "mean")) for step in (*range(_MAX_CHANGES + 1), "any")][-2:]
    [('mean',), ('mean',)]
    """

    def __init__(self) -> None:
        self._alive: list[int] | None = None
        self._last: tuple[Any, ...] = ()
        self._changes: dict[int, int] = {}

    def __call__(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if self._alive is None:
            self._alive, self._last = list(range(len(values))), values
        current = tuple([values[at] for at in self._alive])
        if current != self._last:
            for at, new, old in zip(self._alive, current, self._last, strict=True):
                self._changes[at] = self._changes.get(at, 0) + (new != old)
            self._alive = [at for at in self._alive if self._changes.get(at, 0) < _MAX_CHANGES]
            self._last = tuple([values[at] for at in self._alive])
        return self._last


Changes = tuple[tuple[HeldObject, str, Any], ...]
"""Plain module attributes that were set: the weakly held module, the name, the value."""


class ModuleAttributes:
    """Plain attributes that the script sets on modules between calls of compiled code: modes, counters,
    temperatures. Compiled code sets its own again when repeated."""

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._pending: dict[tuple[int, str], tuple[HeldObject, str, Any]] = {}
        self._initial: dict[tuple[int, str], tuple[HeldObject, str, Any]] = {}

    def install(self, patches: Patches) -> None:
        """Watch attribute assignments, until `patches` are undone."""
        real = torch.nn.Module.__setattr__

        def setattr_(module: Any, name: str, value: Any) -> None:
            if type(value) in _PLAIN and not local.compiled:
                before = module.__dict__.get(name, NOTHING)
                if before is not NOTHING and (type(before) is not type(value) or before != value):
                    self._note_change(module, name, value)
            real(module, name, value)

        patches.set(torch.nn.Module, "__setattr__", setattr_)

    def _note_change(self, module: Any, name: str, value: Any) -> None:
        if len(self._pending) < _MAX_PENDING:
            self._pending[id(module), name] = self._copies.held(module), name, value

    def begin(self, modules: Iterable[Any]) -> None:
        """Record the current attributes of `modules`, called for the first time."""
        owners: dict[int, Any] = {}
        for module in modules:
            owners[id(module)] = module
            beside = (value for value in vars(module).values() if is_record(value))
            owners.update({id(record): record for record in beside})
        for owner in owners.values():
            with suppress(TypeError):  # no weak reference to it can be had
                reference = self._copies.held(owner)
                plain = {name: value for name, value in vars(owner).items() if type(value) in _PLAIN}
                self._initial.update(
                    {
                        (id(owner), name): (reference, name, value)
                        for name, value in plain.items()
                        if name not in _TORCH_ATTRIBUTES
                    }
                )

    @property
    def waiting(self) -> bool:
        """Whether any attribute was set since the last `take`."""
        return bool(self._pending)

    def pending(self, inside: frozenset[int]) -> tuple[Any, ...]:
        """Changed attributes of the modules with these ids, except `training`, as part of a call's key."""
        return tuple(
            (key, value)
            for key, (_, name, value) in self._pending.items()
            if name != "training" and key[0] in inside
        )

    def take(self) -> Changes:
        """Return the attributes set since the last call of this, and forget them."""
        changes = {**self._initial, **self._pending}
        self._initial.clear()
        self._pending.clear()
        return tuple(changes.values())
