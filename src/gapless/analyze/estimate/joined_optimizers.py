"""Change a step so that its optimizer updates all parameters of one setting together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from gapless.analyze.estimate.programme_steps import Step
from gapless.model.optimizer import OptimizerUse
from gapless.model.programme import Entry

MIN_PARAMETERS = 8
"""With fewer parameters a step has too few launches for joining them to matter."""
_TENSORS_PER_PARAMETER = {"Adam": 4, "AdamW": 4, "SGD": 3}
"""Tensors per parameter that a fused kernel reads: itself, its gradient and its states."""


def is_worth_joining(use: OptimizerUse) -> bool:
    """Whether `use` could have fewer launches with the same result but for rounding."""
    turned_on = use.way == "single" and use.better_way != "single"
    joins = use.joins and use.way in ("fused", "foreach")
    return not use.in_backward and use.parameters >= MIN_PARAMETERS and (turned_on or joins)


def join_updates(step: Step, number: int, use: OptimizerUse) -> Step:
    """Return `step` with the updates of the optimizer(s) `use`, of position `number`, taken together.

    Updates in a captured graph stay as they are: their optimizer is unknown.
    """
    kept: list[Entry] = []
    update: list[Entry] = []
    last = inside = -1
    rest = iter(step)
    for entry in rest:
        if entry.kind == "graph":
            kept += (entry, *islice(rest, entry.tensors))
            continue
        if entry.kind == "update":
            inside = entry.site
        elif entry.kind == "operator" and not entry.optimizer:
            inside = -1
        if inside == number and entry.kind in ("update", "operator"):
            update.append(entry)
            last = len(kept)
        else:
            kept.append(entry)
    if last < 0:
        return tuple(kept)
    return (*kept[:last], *_join_update(update, use), *kept[last:])


class _OperatorKey(NamedTuple):
    """Operators of a name and type that become one for the parameters of a setting; `call` numbers the calls
    that each update makes of it."""

    name: str
    dtype: str
    setting: int
    call: int


def _join_update(update: Sequence[Entry], use: OptimizerUse) -> list[Entry]:
    """Return one update for each setting, in the better way."""
    updates = [entry for entry in update if entry.kind == "update"]
    first = msgspec.structs.replace(
        updates[0],
        detail=use.better_way,
        number=use.settings,
        tensors=sum(entry.tensors for entry in updates),
    )
    operators = [entry for entry in update if entry.kind == "operator"]
    return [first, *_better_operators(operators, use, max(len(updates) // max(use.instances, 1), 1))]


def _better_operators(operators: Sequence[Entry], use: OptimizerUse, steps: int = 1) -> list[Entry]:
    """Return the operators that `steps` of the optimizers launch under the better setting."""
    shares = _group_operators(operators, use, steps)
    if use.way == "single" and use.better_way == "fused":
        return _fused_kernels(shares, use)
    return _merge_groups(shares, use)


def _group_operators(
    operators: Sequence[Entry], use: OptimizerUse, steps: int
) -> dict[_OperatorKey, list[Entry]]:
    """Group the operators of the optimizers' `steps` by the operator they become part of."""
    alike: defaultdict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in operators:
        alike[entry.name, entry.dtype].append(entry)
    single = use.way == "single"
    settings = [setting for setting, size in use.members for _ in range(size if single else 1)] * steps
    updates = len(settings) or (use.parameters if single else max(use.groups, use.instances))
    shares: defaultdict[_OperatorKey, list[Entry]] = defaultdict(list)
    for (name, dtype), entries in alike.items():
        calls, rest = divmod(len(entries), updates)
        if settings and calls and not rest:
            places = [(settings[at // calls], at % calls) for at in range(len(entries))]
        else:  # Their parameters are unknown: distribute them in turn.
            calls = max(round(len(entries) / updates), 1)
            places = [(at % use.settings, at // use.settings % calls) for at in range(len(entries))]
        for (setting, call), entry in zip(places, entries, strict=True):
            shares[_OperatorKey(name, dtype, setting, call)].append(entry)
    return shares


def _merge_groups(shares: dict[_OperatorKey, list[Entry]], use: OptimizerUse) -> list[Entry]:
    """Return one operator over lists for each group."""
    single = use.way == "single"
    return [
        msgspec.structs.replace(
            entries[0],
            name=share.name.replace("aten::", "aten::_foreach_", 1) if single else share.name,
            tensors=sum(entry.tensors for entry in entries),
            elements=sum(entry.elements for entry in entries),
            reads=sum(entry.reads for entry in entries),
            writes=sum(entry.writes for entry in entries),
        )
        for share, entries in shares.items()
    ]


def _fused_kernels(shares: dict[_OperatorKey, list[Entry]], use: OptimizerUse) -> list[Entry]:
    """Return the kernels of a fused optimizer, one per setting, in place of single operators."""
    kernels: list[Entry] = []
    for setting in range(use.settings):
        own = [entries for share, entries in shares.items() if share.setting == setting]
        nbytes = max((sum(entry.writes for entry in entries) for entries in own), default=0)
        parameters = max(map(len, own), default=0)
        kernels += _fused_launches(use.name, parameters, nbytes)
    return kernels


def _fused_launches(optimizer: str, parameters: int, nbytes: int) -> Iterator[Entry]:
    """Yield what a fused `optimizer` launches for so many parameters of `nbytes` bytes."""
    states = _TENSORS_PER_PARAMETER.get(optimizer, 3)
    steps = parameters if states == 4 else 0
    if steps:
        yield Entry(
            name="aten::_foreach_add_", dtype="float32", tensors=steps, elements=steps, reads=4 * steps,
            writes=4 * steps, optimizer=True,
        )  # fmt: skip
    yield Entry(
        name=f"aten::_fused_{optimizer.lower()}_",
        dtype="float32",
        tensors=states * parameters + steps,
        elements=states * nbytes // 4 + steps,
        reads=states * nbytes,
        writes=states * nbytes,
        optimizer=True,
    )
