"""Refine what memory is for by whether it outlives the pass that requested it."""

from __future__ import annotations

from collections.abc import Container

import msgspec

from gapless.model.memory import ALLOC, DEFER, FREE, Kind, MemoryRun

FORWARD, BACKWARD, OPTIMIZER = "fbo"
_PASS_OF_KIND = {
    "activation": FORWARD,
    "forward": FORWARD,
    "backward": BACKWARD,
    "gradient": BACKWARD,
    "optimizer": OPTIMIZER,
}


class Passes:
    """The passes of `run` in order, and the pass in which each allocation is made and freed.

    A pass lasts until a different one requests memory. `made` and `ended` are indices into `order` by
    allocation; -1 is before the first. `at` is the pass that contains `event`.
    """

    def __init__(self, run: MemoryRun, wanted: Container[int], event: int) -> None:
        self.order: list[str] = []
        self.made_in: dict[int, int] = {}
        self.ended_in: dict[int, int] = {}
        self.current = -1
        passes = [_PASS_OF_KIND.get(place.kind, "") for place in run.places]
        current, now = "", -1
        columns = zip(run.action, run.ident, run.place, strict=True)
        for row, (action, ident, place) in enumerate(columns):
            if action == ALLOC:
                kind = passes[place] if 0 <= place < len(passes) else ""
                if kind and kind != current:
                    current, now = kind, now + 1
                    self.order.append(kind)
                if ident in wanted:
                    self.made_in[ident] = now
            elif action in (FREE, DEFER) and ident in wanted:
                self.ended_in[ident] = now
            if row == event:
                self.current = now

    def has(self, kind: str, low: int, high: int) -> bool:
        """Whether a pass of `kind` is among those from `low` to `high`, inclusive."""
        return kind in self.order[max(low, 0) : high + 1]

    @property
    def last(self) -> int:
        return len(self.order) - 1


def kinds_of(run: MemoryRun, live: dict[int, int], event: int) -> dict[int, Kind]:
    """Return what each allocation of `live` (allocation to place) is for at `event`."""
    passes = Passes(run, live, event)
    return {ident: _kind(run, passes, ident, place) for ident, place in live.items()}


def _kind(run: MemoryRun, passes: Passes, ident: int, place: int) -> Kind:
    record = run.places[place] if 0 <= place < len(run.places) else None
    kind: Kind = record.kind if record else "unknown"
    start = passes.made_in.get(ident)
    if record is None or start is None:  # from before the recording
        return "forward" if kind == "activation" else kind
    end = passes.ended_in.get(ident, -1)
    over = end >= 0 or ident in passes.ended_in
    until = end if over else passes.last
    outlives = until > start
    if kind in ("activation", "forward"):
        return _forward_kind(passes, start, until, over)
    if kind == "backward":
        return "gradient" if outlives else "temporary" if over else "backward"
    if kind == "optimizer":
        return "temporary" if over and not outlives else kind
    # Memory that Python requests outside of backward and that is freed within it was saved for backward.
    waited = over and outlives and passes.order[until] == BACKWARD
    if kind == "unknown" and record.lines and waited and (start < 0 or passes.order[start] != BACKWARD):
        return "activation"
    return kind


def _forward_kind(passes: Passes, start: int, until: int, over: bool) -> Kind:
    if over and until == start:
        return "temporary"
    if until >= passes.current and passes.has(BACKWARD, start + 1, passes.current):
        first = passes.order.index(BACKWARD, start + 1)
        if passes.has(FORWARD, first + 1, passes.current):
            return "kept"
    return "activation" if passes.has(BACKWARD, start + 1, until) else "forward"


def resolve_kinds(run: MemoryRun) -> MemoryRun:
    """Return `run` with refined kinds of its places; kept memory counts as activations."""
    live = {
        ident: place for action, ident, place in zip(run.action, run.ident, run.place, strict=True)
        if action == ALLOC
    }  # fmt: skip
    roles = kinds_of(run, live, -1)
    # Memory from before the recording is known to be of a forward pass, but not whether backward needs it.
    places = [
        msgspec.structs.replace(place, kind="forward") if place.kind == "activation" else place
        for place in run.places
    ]
    at: dict[tuple[int, Kind], int] = {(number, place.kind): number for number, place in enumerate(places)}
    rows = list(run.place)
    for row, (action, ident, place) in enumerate(zip(run.action, run.ident, run.place, strict=True)):
        if action == ALLOC and 0 <= place < len(run.places):
            key = (place, roles[ident])
            if key not in at:
                at[key] = len(places)
                places.append(msgspec.structs.replace(run.places[place], kind=roles[ident]))
            rows[row] = at[key]
    return msgspec.structs.replace(run, place=tuple(rows), places=tuple(places))
