"""`joined`: a step whose optimizer takes all parameters of one setting together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from gapless.analyze.estimate.programme_steps import Step
from gapless.model.optimizer import OptimizerUse
from gapless.model.programme import Entry

FEWEST = 8
"""Parameters from which on it is worth a look how an optimizer goes through them."""
_STATES = {"Adam": 4, "AdamW": 4, "SGD": 3}
"""Tensors of a parameter that a fused kernel goes through: itself, its gradient and what is kept of it."""


def is_worth_joining(use: OptimizerUse) -> bool:
    """Whether a step of `use` could have fewer launches without another result, but for rounding."""
    turned_on = use.way == "single" and use.better_way != "single"
    joins = use.joins and use.way in ("fused", "foreach")
    return not use.in_backward and use.parameters >= FEWEST and (turned_on or joins)


def joined(step: Step, number: int, use: OptimizerUse) -> Step:
    """Return `step` with the updates of the optimizer(s) `use`, of position `number`, taken together.

    Updates in a captured graph stay as they are: nothing says which optimizer they belong to.
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
    return (*kept[:last], *_together(update, use), *kept[last:])


class _Share(NamedTuple):
    """Operators that become one for the parameters of a setting: all of a name and type, in `call` of the
    calls that each update makes of it."""

    name: str
    dtype: str
    setting: int
    call: int


def _together(update: Sequence[Entry], use: OptimizerUse) -> list[Entry]:
    """One update for each setting, in the better way."""
    begun = [entry for entry in update if entry.kind == "update"]
    first = msgspec.structs.replace(
        begun[0],
        detail=use.better_way,
        number=use.settings,
        tensors=sum(entry.tensors for entry in begun),
    )
    operators = [entry for entry in update if entry.kind == "operator"]
    return [first, *_better(operators, use, max(len(begun) // max(use.instances, 1), 1))]


def _better(operators: Sequence[Entry], use: OptimizerUse, steps: int = 1) -> list[Entry]:
    """What `steps` of the optimizer(s) launch in the better way, which launch `operators` now."""
    shares = _shares(operators, use, steps)
    if use.way == "single" and use.better_way == "fused":
        return _fused(shares, use)
    return _merged(shares, use)


def _shares(operators: Sequence[Entry], use: OptimizerUse, steps: int) -> dict[_Share, list[Entry]]:
    """The operators of the optimizers' `steps`, by what they become part of."""
    alike: defaultdict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in operators:
        alike[entry.name, entry.dtype].append(entry)
    single = use.way == "single"
    settings = [setting for setting, size in use.members for _ in range(size if single else 1)] * steps
    updates = len(settings) or (use.parameters if single else max(use.groups, use.instances))
    shares: defaultdict[_Share, list[Entry]] = defaultdict(list)
    for (name, dtype), entries in alike.items():
        calls, rest = divmod(len(entries), updates)
        if settings and calls and not rest:
            places = [(settings[at // calls], at % calls) for at in range(len(entries))]
        else:  # Which parameters each is for is not known: they go in turn.
            calls = max(round(len(entries) / updates), 1)
            places = [(at % use.settings, at // use.settings % calls) for at in range(len(entries))]
        for (setting, call), entry in zip(places, entries, strict=True):
            shares[_Share(name, dtype, setting, call)].append(entry)
    return shares


def _merged(shares: dict[_Share, list[Entry]], use: OptimizerUse) -> list[Entry]:
    """One operator over lists for each share."""
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


def _fused(shares: dict[_Share, list[Entry]], use: OptimizerUse) -> list[Entry]:
    """The kernels of a fused optimizer, one for each setting, over what operators go through one by one."""
    kernels: list[Entry] = []
    for setting in range(use.settings):
        own = [entries for share, entries in shares.items() if share.setting == setting]
        nbytes = max((sum(entry.writes for entry in entries) for entries in own), default=0)
        parameters = max(map(len, own), default=0)
        kernels += _kernels(use.name, parameters, nbytes)
    return kernels


def _kernels(optimizer: str, parameters: int, nbytes: int) -> Iterator[Entry]:
    """What a fused `optimizer` launches for so many parameters, which have so many bytes."""
    states = _STATES.get(optimizer, 3)
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
