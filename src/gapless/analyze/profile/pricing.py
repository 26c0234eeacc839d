"""Price the waits of a profile: the timeline is replayed without them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

import numpy as np
from msgspec.structs import replace

from gapless.analyze.profile.copies import pinned_factors
from gapless.analyze.profile.grouping import WaitGroup, group_waits, waits_for_unrecorded
from gapless.analyze.profile.marks import find_marks
from gapless.errors import UsageError
from gapless.model import Cost, Site
from gapless.model.profile import Asked, Price, Prices
from gapless.replay.change import ReplayChange, halve_work, remove_waits
from gapless.replay.model import ReplayModel, ReplayRefusal, build
from gapless.replay.price import Removal, price_groups
from gapless.replay.steps import MarkedSteps
from gapless.trace.timeline import Ints, Timeline

ASSUMPTION_PREFIX = "@"
"""Prefix of requests that are not waits to leave out but something else to assume."""

_MIN_PINNING_GAIN = 0.005
"""If pinned memory saves copies less than this share of the profile, only their wait is priced."""

_BY_MECHANISM: dict[str, Removal] = {
    "h2d": "free",
    "explicit": "free",
    "free": "free",
    "d2h": "deferrable",
    "read": "deferrable",
    "status": "deferrable",
}


def price_waits(
    timeline: Timeline,
    costs: Sequence[Cost],
    rows: Sequence[Ints],
    requested: Sequence[str] = (),
    total: int = 0,
) -> Prices:
    """Price all waits among `costs`; `rows` are the host rows of each cost's calls, `total` is the length of
    the steps.

    `requested` are rules (``GAP112``, ``GAP11``), lines (``model.py:42``), files or libraries to leave out
    together; with an ``@`` before it, something to assume (see `_parse_assumption`).

    Raises:
        UsageError: an entry of `requested` matches nothing in this profile.
    """
    model = build(timeline)
    groups = group_waits(costs)
    if isinstance(model, ReplayRefusal):
        return Prices(refused=model.reason)
    members = {number: _rows_of(group.costs, rows) for number, group in enumerate(groups)}
    removals = {
        number: hardest_removal(costs[position].site for position in group.costs)
        for number, group in enumerate(groups)
    }
    priced = price_groups(model, members, removals)
    each_price = tuple(
        _hide_unknown(
            _price_with_pinning(
                model, Price(costs=tuple(group.costs), **asdict(priced.each[number])), members, number
            ),
            priced.each[number].alone,
            [costs[position] for position in group.costs],
            total,
        )
        for number, group in enumerate(groups)
    )
    fit = priced.fidelity
    pinned = [
        _saving_of_change(model, _pin_copies(model, directions)) for directions in ((True,), (True, False))
    ]
    return Prices(
        span=priced.span,
        all=max([priced.all, *(wait_price.alone for wait_price in each_price)]),
        least_all=priced.least_all,
        each=each_price,
        shortest=priced.shortest,
        saved=priced.saved,
        asked=_price_assumptions(model, groups, costs, rows, requested) if requested else None,
        limiter=priced.limiter,
        remains=priced.remains,
        reasons=() if fit.trusted else fit.reasons,
        span_error=fit.span_error,
        drift=fit.drift,
        explained=fit.explained,
        wait_error=fit.wait_error,
        pinned=max(pinned),
        pinned_to_device=max(pinned[0], 0),
    )


def _hide_unknown(price: Price, waiting: int, costs: Sequence[Cost], total: int) -> Price:
    """Return `price` as unknown if the CPU waits for what is not recorded; `waiting` is the waits' price."""
    idle, blocked, working = (
        sum(getattr(cost, name) for cost in costs) for name in ("idle", "blocked", "working")
    )
    nothing_replayed = (
        not price.waits and price.kept > 0
    )  # no wait can be replayed: what they wait for is not recorded
    if price.alone > waiting or not (nothing_replayed or waits_for_unrecorded(idle, blocked, working, total)):
        return price
    return replace(price, alone=-1, last=-1, least_alone=-1, least_last=-1, unknown=True)


def _price_with_pinning(
    model: ReplayModel, price: Price, members: Mapping[int, Sequence[int]], number: int
) -> Price:
    """Return the price of waits for pageable copies to the device, which pinned memory also shortens."""
    table, work = model.waits, model.timeline.work
    marked = model.marked(members[number])
    copies = set(table.copy[marked & (table.copy >= 0)].tolist())
    factors = pinned_factors(model.timeline, model.links.copies, (True,)) if copies else {}
    mine = {row: factor for row, factor in factors.items() if row in copies}
    gained = sum(int(work.end[row] - work.start[row]) * (1 - factor) for row, factor in mine.items())
    if gained < _MIN_PINNING_GAIN * (model.timeline.span[1] - model.timeline.span[0]):
        return price
    more = max(
        _saving_of_change(model, ReplayChange(scaled=mine) | remove_waits(members[number])) - price.alone, 0
    )
    return replace(
        price,
        alone=price.alone + more,
        last=price.last + more,
        least_alone=price.least_alone + more,
        least_last=price.least_last + more,
        blocked=max(price.blocked, price.alone + more),
    )


def _saving_of_change(model: ReplayModel, change: ReplayChange) -> int:
    return model.replay().span - model.replay(change).span if change != ReplayChange() else 0


def _pin_copies(model: ReplayModel, to_device: Sequence[bool] = (True, False)) -> ReplayChange:
    """Return the change that runs copies at the rate of pinned memory; those to the device do not wait.

    A copy to the host keeps its wait, as the host reads the result.
    """
    faster = ReplayChange(scaled=pinned_factors(model.timeline, model.links.copies, to_device))
    return model.pinned() | faster


def _rows_of(positions: Sequence[int], rows: Sequence[Ints]) -> list[int]:
    return [row for position in positions for row in rows[position].tolist()]


def hardest_removal(sites: Iterable[Site]) -> Removal:
    """Return how the waits at these sites can be removed together: the hardest one decides."""
    kinds = {_removal_of(site) for site in sites}
    for kind in ("shape", "deferrable"):
        if kind in kinds:
            return kind
    return "free"


def _removal_of(site: Site) -> Removal:
    if site.call.endswith("__bool__"):
        return "shape"  # the program branches on it
    return _BY_MECHANISM.get(site.mechanism, "shape")


def _price_assumptions(
    model: ReplayModel,
    groups: Sequence[WaitGroup],
    costs: Sequence[Cost],
    rows: Sequence[Ints],
    requested: Sequence[str],
) -> Asked:
    chosen: set[int] = set()
    assumed = ReplayChange()
    if f"{ASSUMPTION_PREFIX}graphs" in requested:
        model = _with_marked_steps(model)
    for text in requested:
        if text.startswith(ASSUMPTION_PREFIX):
            assumed = assumed | _parse_assumption(model, text.removeprefix(ASSUMPTION_PREFIX))
            continue
        meant = {
            position
            for group in groups
            for position in group.costs
            if _matches_request(text, group, costs[position].site)
        }
        if not meant:
            raise UsageError(f"nothing to leave out: this profile has no sync that matches {text!r}")
        chosen |= meant
    gone = _rows_of(sorted(chosen), rows)
    saved = [
        model.replay(change).span - model.replay(change | assumed | remove_waits(gone)).span
        for change in (ReplayChange(), ReplayChange(collectives="end"))
    ]
    return Asked(
        what=tuple(text for text in requested if not text.startswith(ASSUMPTION_PREFIX)),
        assumed=tuple(
            text.removeprefix(ASSUMPTION_PREFIX) for text in requested if text.startswith(ASSUMPTION_PREFIX)
        ),
        waits=int(np.sum(model.marked(gone))),
        saved=saved[0],
        least=min(saved),
    )


def _with_marked_steps(model: ReplayModel) -> ReplayModel:
    """Return `model` with the steps that the profile marks in any way.

    Raises:
        UsageError: the profile marks no steps.
    """
    timeline = model.timeline
    launched = np.sort(timeline.host.start[timeline.launchers[timeline.launchers >= 0]])
    marks = find_marks(timeline, launched)
    if marks is None:
        raise UsageError(
            "--what-if graphs needs marked steps: one launch for the whole profile is not realistic (call "
            "`prof.step()` after each step)"
        )
    return dataclasses.replace(model, steps=MarkedSteps(model.steps.thread, marks.start, marks.end))


def _parse_assumption(model: ReplayModel, text: str) -> ReplayChange:
    """Parse an assumption: ``pinned``, ``input``, ``graphs`` or ``half:KERNEL``.

    Raises:
        UsageError: it is none of these, or no kernel has such a name.
    """
    if text == "pinned":
        return _pin_copies(model)
    if text == "input":
        return ReplayChange(input_free=True)
    if text == "graphs":
        return ReplayChange(graphed=True)  # of the steps set by `_with_marked_steps`
    if text.startswith("half:") and len(text) > len("half:"):
        timeline = model.timeline
        is_named = timeline.names_where(lambda name: text.removeprefix("half:") in name)
        meant = np.flatnonzero(is_named[timeline.work.name])
        if not len(meant):
            raise UsageError(
                f"nothing to make faster: this profile has no kernel with {text[5:]!r} in its name"
            )
        return halve_work(meant.tolist())
    raise UsageError(f"--what-if takes pinned, input, graphs or half:KERNEL, not {text!r}")


def _matches_request(text: str, group: WaitGroup, site: Site) -> bool:
    """Whether `text` (a rule's code, a line, a file or a library) means this wait."""
    if text.upper().startswith("GAP"):
        return group.rule.code.startswith(text.upper())
    return any(
        _is_path_suffix(text, frame.where) or _is_path_suffix(text, frame.file) or frame.library == text
        for frame in (*site.stack, *site.forward)
    )


def _is_path_suffix(suffix: str, where: str) -> bool:
    """Whether `where` ends in `suffix` at a folder's boundary."""
    path = where.replace("\\", "/")
    return path == suffix or path.endswith("/" + suffix)
