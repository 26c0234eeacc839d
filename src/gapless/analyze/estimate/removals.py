"""Find the entries of a step that a remedy removes besides the wait, and let them ride with it in replays.

The operator that waits stands directly before its wait, and before a read what computes a condition. So the
recording of any version of Gapless has them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gapless.analyze.estimate.machine import EntrySpan, MachineRun, TimedEntry
from gapless.analyze.estimate.programme_steps import Step
from gapless.model.programme import Entry, Shape
from gapless.replay.riders import Rider
from gapless.rules.superfluous import FOLLOWED, Superfluous

MIN_SELECTED = 0.5
"""Share of the elements that a selection must keep for its mask to take its place: behind smaller ones
operators of full size would take longer, which is not known here."""
_CHECKS: dict[str, int] = {
    **dict.fromkeys(("all", "any", "_is_all_true", "_is_any_true", "logical_not", "bitwise_not"), 1),
    **dict.fromkeys(("logical_and", "logical_or", "bitwise_and", "bitwise_or", "__and__", "__or__"), 2),
    **dict.fromkeys(("eq", "ne", "ge", "gt", "le", "lt", "isnan", "isinf", "isfinite"), 0),
}
"""Operators that compute a condition, with how many conditions each of them takes."""
_READING = frozenset({"index", "index_select", "gather"})
_WRITING = frozenset({"index_put", "index_put_", "_index_put_impl_", "index_fill_", "index_fill"})
_POSSIBLE: dict[str, Superfluous] = {
    "read": Superfluous(copy=True, check=True),
    "size": Superfluous(copy=True, operator=True),
    "values": Superfluous(copy=True),
    "status": Superfluous(copy=True),
    "d2h": Superfluous(copy=True),
}
"""What may go with a sync, by its mechanism."""
_SMALL_COPIES = ("scalar", "list", "value", "index")
"""Details of copies to the GPU that may go: of what is no batch."""


class Removal(NamedTuple):
    """An entry that goes with the wait at position `wait` of a step: that at position `entry`, which is the
    wait itself for its copy. `instead` comes in its place, and `certain` says that the remedy removes it.
    """

    wait: int
    entry: int
    certain: bool
    instead: Entry | None = None


def find_removals(step: Step, removed: Mapping[int, Superfluous]) -> Iterator[Removal]:
    """Yield what goes with the waits of `step`. `removed` holds what is known of sites."""
    taken: set[int] = set()
    met: Counter[int] = Counter()
    for at, entry in enumerate(step):
        if entry.kind != "wait" or entry.graph:
            continue
        by_remedy = removed.get(entry.site, Superfluous())
        met[entry.site] += 1
        if by_remedy.once and met[entry.site] == 1:
            continue
        for certain, part in ((True, by_remedy), (False, _possible(entry))):
            for removal in _of_wait(step, at, part, certain):
                if removal.entry not in taken:
                    taken.add(removal.entry)
                    yield removal


def _possible(entry: Entry) -> Superfluous:
    """Return what may go with a wait."""
    if entry.mechanism == "h2d":
        return Superfluous(copy=entry.detail in _SMALL_COPIES)
    return _POSSIBLE.get(entry.mechanism, Superfluous())


def _of_wait(step: Step, at: int, removed: Superfluous, certain: bool) -> Iterator[Removal]:
    """Yield what goes with the wait at position `at`."""
    if removed.copy:
        yield Removal(at, at, certain)
    before = at - 1
    while before >= 0 and step[before].kind == "wait" and step[before].name == step[at].name:
        before -= 1
    if before < 0 or not _is_eager(step[before]):
        return
    if removed.operator and step[before].name == step[at].name:
        yield from _of_operator(step, at, before, removed, certain)
    if removed.check:
        yield from (Removal(at, place, certain) for place in _condition(step, before))


def _is_eager(entry: Entry) -> bool:
    return entry.kind == "operator" and not (entry.compiled or entry.graph)


def _of_operator(step: Step, at: int, before: int, removed: Superfluous, certain: bool) -> Iterator[Removal]:
    """Yield the operator that waits, if what takes its place is known, and in backward the zeros that it
    writes to."""
    entry = step[before]
    if removed.instead == FOLLOWED:
        if _becomes_fixed(step, at, entry):
            yield Removal(at, before, certain)
        return
    if removed.instead == "aten::sum":
        yield Removal(at, before, certain, _count_of(entry))
    elif removed.instead:
        if not _keeps_enough(entry):
            return
        yield Removal(at, before, certain, _where_of(entry))
    else:
        yield Removal(at, before, certain)
    if entry.backward and before and step[before - 1].name == "aten::new_zeros":
        yield Removal(at, before - 1, certain)


def _becomes_fixed(step: Step, at: int, entry: Entry) -> bool:
    """Whether an index behind the wait at `at` uses what `entry` finds, at about full size."""
    following = next((other for other in step[at + 1 :] if other.kind != "wait"), None)
    if following is None or not _is_eager(following):
        return False
    name = following.name.removeprefix("aten::")
    hits = entry.outputs[0][0] if entry.outputs and entry.outputs[0] else 0
    enough = hits >= MIN_SELECTED * math.prod(entry.inputs[0]) if entry.inputs else False
    return name in _WRITING or (name in _READING and enough)


def _keeps_enough(entry: Entry) -> bool:
    """Whether a mask can take the place of a selection or of a write through a mask."""
    if not entry.inputs or not entry.outputs:
        return False
    if "index_put" in entry.name:  # a list of as many values as the mask selects has no fixed size
        return entry.backward or (len(entry.inputs) > 2 and math.prod(entry.inputs[2]) == 1)
    return math.prod(entry.outputs[0]) >= MIN_SELECTED * math.prod(entry.inputs[0])


def _where_of(entry: Entry) -> Entry:
    """Return ``torch.where`` over all elements that `entry` selects from, or writes to."""
    full = entry.inputs[0]
    elements = math.prod(full)
    each = max(entry.writes // max(math.prod(entry.outputs[0]), 1), 1)
    shapes: tuple[Shape, ...] = (full, full, ())
    return Entry(
        name="aten::where", dtype=entry.dtype, inputs=shapes, outputs=(full,), tensors=3,
        elements=2 * elements, reads=elements * (each + 1), writes=elements * each, backward=entry.backward,
    )  # fmt: skip


def _count_of(entry: Entry) -> Entry:
    """Return the sum of the mask with which `entry` selects, or in which it finds what is not zero."""
    mask = entry.inputs[1] if len(entry.inputs) > 1 else entry.inputs[0] if entry.inputs else ()
    elements = math.prod(mask)
    return Entry(
        name="aten::sum", dtype="bool", inputs=(mask,), outputs=((),), tensors=1, elements=elements,
        reads=elements, writes=8,
    )  # fmt: skip


def _condition(step: Step, last: int) -> Iterator[int]:
    """Yield the positions of the operators up to `last` that compute one condition; none if they are not all
    there."""
    places: list[int] = []
    wanted, at = 1, last
    while wanted and at >= 0:
        taken = _CHECKS.get(step[at].name.removeprefix("aten::")) if _is_eager(step[at]) else None
        if taken is None:
            return
        places.append(at)
        wanted += taken - 1
        at -= 1
    if not wanted:
        yield from places


class Ride(NamedTuple):
    """A rider, and the site of its wait."""

    rider: Rider
    site: int


def ride(
    ran: MachineRun,
    order: Sequence[Step],
    removed: Mapping[int, Superfluous],
    time: Callable[[Entry], TimedEntry],
) -> list[Ride]:
    """Return what goes with the waits of the priced steps `order`, which `ran` has run between two others.
    `time` times what comes in its place."""
    work = {number: row for row, number in enumerate(ran.timeline.work.correlation.tolist())}
    rides: list[Ride] = []
    removals_of: dict[int, list[Removal]] = {}
    for step, spans in zip(order, ran.spans[1:-1], strict=True):
        if id(step) not in removals_of:
            removals_of[id(step)] = list(find_removals(step, removed))
        for removal in removals_of[id(step)]:
            row = ran.rows[spans[removal.wait][0].row]
            comes = time(removal.instead) if removal.instead is not None else None
            for span in spans[removal.entry]:
                own = ran.rows[span.row] if removal.entry == removal.wait else row
                rider = _rider(span, own, removal, comes, work)
                rides.append(Ride(rider, step[removal.wait].site))
    return rides


def _rider(
    span: EntrySpan, row: int, removal: Removal, comes: TimedEntry | None, work: Mapping[int, int]
) -> Rider:
    """Return the rider of an entry that ran in `span`."""
    rows = [work[number] for number in range(span.first, span.last) if number in work]
    whole = removal.entry == removal.wait
    stays = 0
    if comes is not None and rows:
        stays = min(span.end - span.begin, round(max(comes.host, comes.kernels * span.call)))
        kept = math.ceil(comes.device * len(rows) / span.device) if span.device else comes.kernels
        rows = rows[max(kept, comes.kernels) :]
    return Rider(row, span.begin, span.end, tuple(rows), stays, whole, removal.certain)
