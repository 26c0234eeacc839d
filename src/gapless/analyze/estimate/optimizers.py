"""`joined`: a step whose optimizer takes all parameters of one setting together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from gapless.analyze.estimate.steps import Step
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
    """`step` with the updates of the optimizer(s) `use`, of position `number`, taken together."""
    kept: list[Entry] = []
    update: list[Entry] = []
    last = inside = -1
    for entry in step:
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
        return step
    return (*kept[:last], *_together(update, use), *kept[last:])


def _together(update: Sequence[Entry], use: OptimizerUse) -> list[Entry]:
    """One update for each setting, in the better way."""
    parameters = sum(entry.tensors for entry in update if entry.kind == "update")
    operators = [entry for entry in update if entry.kind == "operator"]
    way = use.better_way
    first = msgspec.structs.replace(
        next(entry for entry in update if entry.kind == "update"),
        detail=way,
        number=use.settings,
        tensors=parameters,
    )
    if use.way == "single" and way == "fused":
        return [first, *_fused(operators, use, parameters)]
    return [first, *_merged(operators, use, parameters)]


def _merged(operators: Sequence[Entry], use: OptimizerUse, parameters: int) -> list[Entry]:
    """Operators of one name as one for each setting and each time that a parameter needs it."""
    alike: defaultdict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in operators:
        alike[entry.name, entry.dtype].append(entry)
    single = use.way == "single"
    updates = parameters if single else max(use.groups, use.instances)
    merged = []
    for (name, _), entries in alike.items():
        count = min(use.settings * max(round(len(entries) / updates), 1), len(entries))
        merged += _split(entries, count, name.replace("aten::", "aten::_foreach_", 1) if single else name)
    return merged


def _split(entries: Sequence[Entry], count: int, name: str) -> list[Entry]:
    """`count` operators that do together what `entries` do."""
    whole = msgspec.structs.replace(
        entries[0],
        name=name,
        tensors=sum(one.tensors for one in entries),
        elements=sum(one.elements for one in entries),
        reads=sum(one.reads for one in entries),
        writes=sum(one.writes for one in entries),
    )
    return [_part(whole, count)] * count


def _part(whole: Entry, count: int) -> Entry:
    return msgspec.structs.replace(
        whole,
        tensors=max(whole.tensors // count, 1),
        elements=whole.elements // count,
        reads=whole.reads // count,
        writes=whole.writes // count,
    )


def _fused(operators: Sequence[Entry], use: OptimizerUse, parameters: int) -> list[Entry]:
    """The kernels of a fused optimizer over what `operators` go through one by one."""
    written: defaultdict[str, list[int]] = defaultdict(list)
    for entry in operators:
        written[entry.name].append(entry.writes)
    each = [sum(sizes) // max(round(len(sizes) / max(parameters, 1)), 1) for sizes in written.values()]
    nbytes, states = max(each, default=0), _STATES.get(use.name, 3)
    steps = parameters if states == 4 else 0
    whole = Entry(
        name=f"aten::_fused_{use.name.lower()}_",
        dtype="float32",
        tensors=states * parameters + steps,
        elements=states * nbytes // 4 + steps,
        reads=states * nbytes,
        writes=states * nbytes,
        optimizer=True,
    )
    kernels = [_part(whole, use.settings)] * use.settings
    if not steps:
        return kernels
    counted = Entry(
        name="aten::_foreach_add_", dtype="float32", tensors=steps, elements=steps, reads=4 * steps,
        writes=4 * steps, optimizer=True,
    )  # fmt: skip
    return [*[_part(counted, use.settings)] * use.settings, *kernels]
