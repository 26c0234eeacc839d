"""What became of memory: what a pass asks for is told apart by whether it outlives the pass."""

from __future__ import annotations

from collections.abc import Container

import msgspec

from gapless.model.memory import ALLOC, DEFER, FREE, Kind, MemoryRun

FORWARD, BACKWARD, OPTIMIZER = "fbo"
_PASSES = {
    "activation": FORWARD,
    "forward": FORWARD,
    "backward": BACKWARD,
    "gradient": BACKWARD,
    "optimizer": OPTIMIZER,
}


class Passes:
    """The passes of `run` in order, and in which of them each allocation is made and given back.

    A pass goes on until another kind of it asks for memory. `made` and `ended` are positions in `order`, by
    ident; -1 is before the first. `at` is the pass that `event` lies in.
    """

    def __init__(self, run: MemoryRun, wanted: Container[int], event: int) -> None:
        self.order: list[str] = []
        self.made: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        self.at = -1
        passes = [_PASSES.get(place.kind, "") for place in run.places]
        current, now = "", -1
        columns = zip(run.action, run.ident, run.place, strict=True)
        for row, (action, ident, place) in enumerate(columns):
            if action == ALLOC:
                kind = passes[place] if 0 <= place < len(passes) else ""
                if kind and kind != current:
                    current, now = kind, now + 1
                    self.order.append(kind)
                if ident in wanted:
                    self.made[ident] = now
            elif action in (FREE, DEFER) and ident in wanted:
                self.ended[ident] = now
            if row == event:
                self.at = now

    def has(self, kind: str, low: int, high: int) -> bool:
        """Whether a pass of that kind is among those from `low` up to and with `high`."""
        return kind in self.order[max(low, 0) : high + 1]

    @property
    def last(self) -> int:
        return len(self.order) - 1


def kinds_of(run: MemoryRun, live: dict[int, int], event: int) -> dict[int, Kind]:
    """What each of `live` is at `event`; `live` gives each allocation's place."""
    passes = Passes(run, live, event)
    return {ident: _kind(run, passes, ident, place) for ident, place in live.items()}


def _kind(run: MemoryRun, passes: Passes, ident: int, place: int) -> Kind:
    known = run.places[place] if 0 <= place < len(run.places) else None
    kind: Kind = known.kind if known else "unknown"
    made = passes.made.get(ident)
    if known is None or made is None:  # from before the recording
        return "forward" if kind == "activation" else kind
    ended = passes.ended.get(ident, -1)
    over = ended >= 0 or ident in passes.ended
    until = ended if over else passes.last
    outlives = until > made
    if kind in ("activation", "forward"):
        return _of_forward(passes, made, until, over)
    if kind == "backward":
        return "gradient" if outlives else "temporary" if over else "backward"
    if kind == "optimizer":
        return "temporary" if over and not outlives else kind
    # What Python asks for outside of backward, and is given back within it, backward waited for.
    waited = over and outlives and passes.order[until] == BACKWARD
    if kind == "unknown" and known.lines and waited and (made < 0 or passes.order[made] != BACKWARD):
        return "activation"
    return kind


def _of_forward(passes: Passes, made: int, until: int, over: bool) -> Kind:
    if over and until == made:
        return "temporary"
    if until >= passes.at and passes.has(BACKWARD, made + 1, passes.at):
        first = passes.order.index(BACKWARD, made + 1)
        if passes.has(FORWARD, first + 1, passes.at):
            return "kept"
    return "activation" if passes.has(BACKWARD, made + 1, until) else "forward"


def told_apart(run: MemoryRun) -> MemoryRun:
    """`run` with what became of its memory as the kinds of its places; what is kept counts as activations."""
    live = {
        ident: place for action, ident, place in zip(run.action, run.ident, run.place, strict=True)
        if action == ALLOC
    }  # fmt: skip
    roles = kinds_of(run, live, -1)
    # Where recording began with it, no more is known of a forward pass than that.
    places = [
        msgspec.structs.replace(one, kind="forward") if one.kind == "activation" else one
        for one in run.places
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
