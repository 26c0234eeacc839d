"""What the waits of a profile cost: the timeline replayed without them."""

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
from gapless.replay.change import Change, halved, without
from gapless.replay.model import Model, Refusal, build
from gapless.replay.price import Removal, prices
from gapless.replay.steps import Steps
from gapless.trace.timeline import Ints, Timeline

ASSUMED = "@"
"""What is asked with this before it is no wait to leave out but something else to assume."""

_GAIN = 0.005
"""Copies that pinned memory shortens by less than this part of the profile cost what their wait does."""

_BY_MECHANISM: dict[str, Removal] = {
    "h2d": "free",
    "explicit": "free",
    "free": "free",
    "d2h": "deferrable",
    "read": "deferrable",
    "status": "deferrable",
}


def price(
    timeline: Timeline, costs: Sequence[Cost], rows: Sequence[Ints], asked: Sequence[str] = (), total: int = 0
) -> Prices:
    """The prices of all waits among `costs`; `rows` are the host rows of each cost's calls, `total` is the
    length of the steps.

    `asked` are rules (``GAP112``, ``GAP11``), lines (``model.py:42``), files or libraries to leave out
    together; with an ``@`` before it, something to assume (see `_assumption`).

    Raises:
        UsageError: one of `asked` means nothing in this profile.
    """
    model = build(timeline)
    groups = group_waits(costs)
    if isinstance(model, Refusal):
        return Prices(refused=model.reason)
    members = {number: _rows(group.costs, rows) for number, group in enumerate(groups)}
    removals = {
        number: removal(costs[position].site for position in group.costs)
        for number, group in enumerate(groups)
    }
    found = prices(model, members, removals)
    each = tuple(
        _known(
            _pinned_price(
                model, Price(costs=tuple(group.costs), **asdict(found.each[number])), members, number
            ),
            found.each[number].alone,
            [costs[position] for position in group.costs],
            total,
        )
        for number, group in enumerate(groups)
    )
    fit = found.fidelity
    pinned = [_saved_by(model, _pinned(model, of)) for of in ((True,), (True, False))]
    return Prices(
        span=found.span,
        all=max([found.all, *(one.alone for one in each)]),
        least_all=found.least_all,
        each=each,
        shortest=found.shortest,
        saved=found.saved,
        asked=_asked(model, groups, costs, rows, asked) if asked else None,
        limiter=found.limiter,
        remains=found.remains,
        reasons=() if fit.trusted else fit.reasons,
        span_error=fit.span_error,
        drift=fit.drift,
        explained=fit.explained,
        wait_error=fit.wait_error,
        pinned=max(pinned),
        pinned_to_device=max(pinned[0], 0),
    )


def _known(price: Price, waiting: int, costs: Sequence[Cost], total: int) -> Price:
    """`price`, unknown where the CPU waits for what the profile does not show; `waiting` is that of waits."""
    idle, blocked, working = (
        sum(getattr(cost, name) for cost in costs) for name in ("idle", "blocked", "working")
    )
    none = not price.waits and price.kept > 0  # of them can be replayed: what they wait for is not shown
    if price.alone > waiting or not (none or waits_for_unrecorded(idle, blocked, working, total)):
        return price
    return replace(price, alone=-1, last=-1, least_alone=-1, least_last=-1, unknown=True)


def _pinned_price(model: Model, price: Price, members: Mapping[int, Sequence[int]], number: int) -> Price:
    """The price of waits for pageable copies to the device, which pinned memory makes faster as well."""
    table, work = model.waits, model.timeline.work
    marked = model.marked(members[number])
    copies = set(table.copy[marked & (table.copy >= 0)].tolist())
    factors = pinned_factors(model.timeline, model.links.copies, (True,)) if copies else {}
    mine = {row: factor for row, factor in factors.items() if row in copies}
    gained = sum(int(work.end[row] - work.start[row]) * (1 - factor) for row, factor in mine.items())
    if gained < _GAIN * (model.timeline.span[1] - model.timeline.span[0]):
        return price
    more = max(_saved_by(model, Change(scaled=mine) | without(members[number])) - price.alone, 0)
    return replace(
        price,
        alone=price.alone + more,
        last=price.last + more,
        least_alone=price.least_alone + more,
        least_last=price.least_last + more,
        blocked=max(price.blocked, price.alone + more),
    )


def _saved_by(model: Model, change: Change) -> int:
    return model.replay().span - model.replay(change).span if change != Change() else 0


def _pinned(model: Model, to_device: Sequence[bool] = (True, False)) -> Change:
    """Copies in these directions at the rate of pinned memory; those to the device do not wait.

    A copy to the host keeps its wait: what is read there must have arrived.
    """
    faster = Change(scaled=pinned_factors(model.timeline, model.links.copies, to_device))
    return model.pinned() | faster


def _rows(positions: Sequence[int], rows: Sequence[Ints]) -> list[int]:
    return [row for position in positions for row in rows[position].tolist()]


def removal(sites: Iterable[Site]) -> Removal:
    """How the waits at these sites can go together: the hardest decides."""
    kinds = {_of_site(site) for site in sites}
    for kind in ("shape", "deferrable"):
        if kind in kinds:
            return kind
    return "free"


def _of_site(site: Site) -> Removal:
    if site.call.endswith("__bool__"):
        return "shape"  # the program branches on it
    return _BY_MECHANISM.get(site.mechanism, "shape")


def _asked(
    model: Model,
    groups: Sequence[WaitGroup],
    costs: Sequence[Cost],
    rows: Sequence[Ints],
    asked: Sequence[str],
) -> Asked:
    chosen: set[int] = set()
    assumed = Change()
    if f"{ASSUMED}graphs" in asked:
        model = _with_steps(model)
    for what in asked:
        if what.startswith(ASSUMED):
            assumed = assumed | _assumption(model, what.removeprefix(ASSUMED))
            continue
        meant = {
            position for group in groups for position in group.costs if _is(what, group, costs[position].site)
        }
        if not meant:
            raise UsageError(f"nothing to leave out: this profile has no sync that matches {what!r}")
        chosen |= meant
    gone = _rows(sorted(chosen), rows)
    saved = [
        model.replay(change).span - model.replay(change | assumed | without(gone)).span
        for change in (Change(), Change(collectives="end"))
    ]
    return Asked(
        what=tuple(what for what in asked if not what.startswith(ASSUMED)),
        assumed=tuple(what.removeprefix(ASSUMED) for what in asked if what.startswith(ASSUMED)),
        waits=int(np.sum(model.marked(gone))),
        saved=saved[0],
        least=min(saved),
    )


def _with_steps(model: Model) -> Model:
    """`model` with the steps that the profile marks, however it does.

    Raises:
        UsageError: it marks none.
    """
    timeline = model.timeline
    launched = np.sort(timeline.host.start[timeline.launchers[timeline.launchers >= 0]])
    marks = find_marks(timeline, launched)
    if marks is None:
        raise UsageError(
            "--what-if graphs needs marked steps: one launch for the whole profile is not realistic (call "
            "`prof.step()` after each step)"
        )
    return dataclasses.replace(model, steps=Steps(model.steps.thread, marks.start, marks.end))


def _assumption(model: Model, what: str) -> Change:
    """What else is to be different: ``pinned``, ``input``, ``graphs`` or ``half:KERNEL``.

    Raises:
        UsageError: it is none of these, or no kernel has such a name.
    """
    if what == "pinned":
        return _pinned(model)
    if what == "input":
        return Change(input_free=True)
    if what == "graphs":
        return Change(graphed=True)  # of the steps that `_with_steps` has found
    if what.startswith("half:") and len(what) > len("half:"):
        timeline = model.timeline
        named = timeline.names_where(lambda name: what.removeprefix("half:") in name)
        meant = np.flatnonzero(named[timeline.work.name])
        if not len(meant):
            raise UsageError(
                f"nothing to make faster: this profile has no kernel with {what[5:]!r} in its name"
            )
        return halved(meant.tolist())
    raise UsageError(f"--what-if takes pinned, input, graphs or half:KERNEL, not {what!r}")


def _is(what: str, group: WaitGroup, site: Site) -> bool:
    """Whether a wait is meant by a rule's code, a line, a file or a library."""
    if what.upper().startswith("GAP"):
        return group.rule.code.startswith(what.upper())
    return any(
        _names(what, frame.where) or _names(what, frame.file) or frame.library == what
        for frame in (*site.stack, *site.forward)
    )


def _names(what: str, where: str) -> bool:
    """Whether `where` ends in `what` at a folder's bound."""
    path = where.replace("\\", "/")
    return path == what or path.endswith("/" + what)
