"""A snapshot's trace as the events of a `MemoryRun`: what the program asked for, not what came of it."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from gapless.memory.calls import Calls, most_reserved
from gapless.memory.frames import Places
from gapless.memory.rewind import FREE as IDLE
from gapless.memory.rewind import FREES, WAITING, pool_of
from gapless.memory.settings import NO_LIMIT, Settings
from gapless.memory.sizes import SMALL, SMALL_SEGMENT, round_size, segment_size
from gapless.memory.start import Start
from gapless.memory.timing import timed
from gapless.model.memory import (
    ALLOC,
    DEFER,
    DONE,
    EMPTY,
    FAILED,
    FREE,
    RETIRE,
    STEP,
    Recorded,
    StartBlock,
    StartSegment,
)
from gapless.model.memory_answer import Refusal


class History:
    """Reads `trace` forwards. The columns are those of `MemoryRun`."""

    def __init__(
        self, trace: list[Any], settings: Settings, start: Start, places: Places, marks: list[Any]
    ) -> None:
        self.action: list[int] = []
        self.ident: list[int] = []
        self.size: list[int] = []
        self.stream: list[int] = []
        self.place: list[int] = []
        self.time: list[int] = []
        self.address: list[int] = []
        self.pool: list[int] = []
        self.pools = [""]
        self.timed = timed(trace)
        self._trace = trace
        self._settings = settings
        self._places = places
        self._origin = trace[0]["time_us"] if self.timed else 0
        self._start = start
        self._marks = _step_times(marks) if self.timed else []
        self._count = 0
        self._live: dict[int, int] = {}
        self._begun: dict[int, int] = {}
        self._pending: dict[int, int] = {}
        self._held: list[tuple[int, Any]] = []
        self._synced = self._emptied = False
        # A release at the very beginning may be the rest of one: what came before is lost, or nothing did.
        self._opening = True
        self._private = _Ranges(start.private)
        self._retired: set[int] = set()
        self._refused: list[int] = []
        self._hand: dict[int, bool] = {}
        self._calls = Calls(start)
        self._most = most_reserved(trace, start.reserved)
        self._odd: dict[str, int] = {}
        self._read()

    # What the rest of the run is made of ----------------------------------------------------------

    def pool_number(self, name: str) -> int:
        """The position of a private pool in `pools`."""
        if name not in self.pools:
            self.pools.append(name)
        return self.pools.index(name)

    def ident_at_start(self, address: int) -> int:
        """The allocation that lay at `address` when recording began."""
        ident = self._begun.get(address)
        if ident is None:
            ident = self._begun[address] = self._new()
        return ident

    def starting(self) -> tuple[StartSegment, ...]:
        """What was reserved when recording began, with the allocations named as in the columns."""
        found, rewind = [], self._start.rewind
        for address in sorted(rewind.ranges):
            home = rewind.ranges[address]
            blocks = [self._block(start) for start in home.starts]
            found.append(
                StartSegment(
                    address=address,
                    size=home.size,
                    stream=home.stream,
                    small=home.small,
                    expandable=home.expandable,
                    pool=self.pool_number(home.pool),
                    blocks=tuple(blocks),
                )
            )
        return tuple(found)

    def _block(self, address: int) -> StartBlock:
        piece = self._start.rewind.pieces[address]
        if piece.state == IDLE:
            return StartBlock(piece.size)
        return StartBlock(
            size=piece.size,
            ident=self.ident_at_start(address),
            requested=piece.requested,
            place=self._places.of_frames(piece.frames),
            deferred=piece.state == WAITING,
        )

    def recorded(self) -> Recorded:
        calls = self._calls
        unsure = self._settings.collects or self._settings.max_split_size < NO_LIMIT
        return Recorded(
            mallocs=calls.mallocs,
            frees=calls.frees,
            maps=calls.maps,
            unmaps=calls.unmaps,
            retries=-1 if unsure else calls.retries,
            ooms=calls.ooms,
            peak_reserved=calls.peak,
            final_reserved=calls.reserved,
            segments=tuple(calls.segments),
            spaces=tuple((stream, small, at) for stream, small, at in calls.spaces.found),
            floor=calls.floor,
            ceiling=calls.ceiling,
            told=calls.device_free >= 0,
        )

    def refusals(self) -> tuple[Refusal, ...]:
        """What is known of the requests that failed."""
        told = zip(self._refused, self._calls.refusals, strict=True)
        return tuple(Refusal(event=row, reserved=reserved, free=free) for row, (reserved, free) in told)

    @property
    def began(self) -> int:
        """When it begins, by the recording's clock: nanoseconds, -1 where that is not told."""
        return 1000 * self._origin if self.timed else -1

    def limit(self) -> int:
        """What this process could get of the device's memory; -1 where it never ran into its end.

        A failed request tells what the device had left. What was refused is more than there was, and what was
        reserved at once is not; where no more is known, that is taken.
        """
        calls = self._calls
        if calls.device_free < 0:
            return calls.floor if calls.ceiling >= 0 else -1
        found = calls.device_free if calls.ceiling < 0 else min(calls.device_free, calls.ceiling - 1)
        return max(found, calls.floor)

    def notes(self) -> list[str]:
        found = [
            f"{count} entries of the unknown kind {kind!r} were skipped"
            for kind, count in sorted(self._odd.items())
        ]
        calls = self._calls
        if 0 <= calls.ceiling <= calls.floor:
            found.append("the memory available to this process changed during the run")
        return found

    # Reading --------------------------------------------------------------------------------------

    def _read(self) -> None:
        trace = self._trace
        mark = 0
        for at, entry in enumerate(trace):
            while mark < len(self._marks) and self._marks[mark] <= entry["time_us"]:
                self._row(STEP, -1, entry)
                mark += 1
            reader = _READERS.get(entry["action"])
            if reader is None:
                self._odd[entry["action"]] = self._odd.get(entry["action"], 0) + 1
            else:
                self._opening &= entry["action"] in FREES
                reader(self, at, entry)
        self._complete()

    def _row(
        self, action: int, ident: int, entry: Any, size: int = 0, place: int = -1, pool: int = 0
    ) -> None:
        self.action.append(action)
        self.ident.append(ident)
        self.size.append(size)
        self.stream.append(entry["stream"])
        self.place.append(place)
        self.time.append(1000 * (entry["time_us"] - self._origin) if self.timed else 0)
        self.address.append(entry.get("addr", 0) if action == ALLOC else 0)
        self.pool.append(pool)

    def _new(self) -> int:
        self._count += 1
        return self._count - 1

    def _alloc(self, at: int, entry: Any) -> None:
        if not self._synced:
            self._complete()
        ident = self._live[entry["addr"]] = self._new()
        pool = self.pool_number(pool_of(entry) or self._private.at(entry["addr"]))
        self._row(ALLOC, ident, entry, entry["size"], self._places.of_entry(entry), pool)
        self._complete()
        self._calls.served()

    def _free_requested(self, at: int, entry: Any) -> None:
        address = entry["addr"]
        ident = self._live.pop(address, -1)
        if ident < 0:
            ident = self.ident_at_start(address)
        following = self._trace[at + 1] if at + 1 < len(self._trace) else {}
        # With frames of its own the completion is that of a later request, which waited for another stream.
        now = (
            following.get("action") == "free_completed"
            and following.get("addr") == address
            and following.get("frames") == entry.get("frames")
        )
        self._row(FREE if now else DEFER, ident, entry)
        self._pending[address] = -1 if now else ident

    def _free_completed(self, at: int, entry: Any) -> None:
        ident = self._pending.pop(entry["addr"], None)
        if ident is None:  # it was waiting already when recording began
            ident = self.ident_at_start(entry["addr"])
        if ident >= 0:
            self._held.append((ident, entry))

    def _complete(self) -> None:
        """Completions found while a request was served.

        They stand before it, unless the request itself waited for them (`_synced`): then it gave memory back
        as well, and a replay waits in the same way.
        """
        for ident, entry in self._held:
            self._row(DONE, ident, entry)
        self._held, self._synced = [], False

    def _segment_alloc(self, at: int, entry: Any) -> None:
        self._calls.alloc(entry)

    def _segment_free(self, at: int, entry: Any) -> None:
        if not self._goes_on(at):
            self._emptied = self._opening or self._by_hand(entry) or not self._serves(at)
        if self._emptied:
            if not self._continues(at, self._by_hand(entry)):
                self._row(EMPTY, -1, entry)
                self._complete()
            self._calls.free(entry, releasing=False)
        else:
            self._synced = not self._settings.collects  # which waits for nothing
            self._calls.free(entry, releasing=True)
        pool = self._private.at(entry["addr"]) or pool_of(entry)
        number = self.pool_number(pool)
        if number and number not in self._retired:
            self._retired.add(number)
            self._row(RETIRE, number, entry)

    def _goes_on(self, at: int) -> bool:
        """Whether this is more of what the entry before began: whose doing that is, is known already."""
        entry, before = self._trace[at], self._trace[at - 1] if at else {"action": ""}
        return before["action"] in FREES and not (
            self._opening or self._by_hand(entry) or self._by_hand(before)
        )

    def _by_hand(self, entry: Any) -> bool:
        """Whether the frames show that the user emptied the cache; each list is looked at once."""
        frames = entry.get("frames") or ()
        known = self._hand.get(id(frames))
        if known is None:
            known = self._hand[id(frames)] = any(
                isinstance(frame, dict)
                and ("emptyCache" in str(frame.get("name")) or frame.get("name") == "empty_cache")
                for frame in frames
            )
        return known

    def _continues(self, at: int, by_hand: bool) -> bool:
        """Whether the entry before is of the same call."""
        if not at or self._trace[at - 1]["action"] not in FREES:
            return False
        return not by_hand or self._by_hand(self._trace[at - 1])

    def _serves(self, at: int) -> bool:
        """Whether memory is given back for a request: what follows is more of it, or a failure.

        The request's own frames show it. Where there are none, it must have been one that the device could
        not meet: together with what was reserved it asked for more than ever was.
        """
        if self._calls.releasing:
            return True
        given = self._trace[at]
        for following in range(at + 1, len(self._trace)):
            entry = self._trace[following]
            if entry["action"] in FREES and entry.get("frames") != given.get("frames"):
                return False  # each has the frames of its making: so it is where only those were recorded
            if entry["action"] in (*FREES, "free_completed", "snapshot"):
                continue
            if entry["action"] not in ("segment_alloc", "segment_map", "oom"):
                return False
            if given.get("frames") and given["frames"] == entry.get("frames"):
                return True
            if entry["action"] == "oom":
                return True
            return self._calls.reserved + entry["size"] > self._most and not self._had_room(at, following)
        return False

    def _had_room(self, at: int, following: int) -> bool:
        """Whether one of the segments given back from `at` on would have served the request behind them."""
        asked = next((one for one in self._trace[following:] if one["action"] == "alloc"), None)
        if asked is None or self._held or self._settings.max_split_size < NO_LIMIT:
            return False
        size = round_size(asked["size"], self._settings.divisions)
        return any(
            one["stream"] == asked["stream"]
            and one["size"] >= size
            and (one["size"] <= SMALL_SEGMENT) == (size <= SMALL)
            for one in self._trace[at:following]
            if one["action"] in FREES
        )

    def _segment_map(self, at: int, entry: Any) -> None:
        self._calls.map(entry)

    def _oom(self, at: int, entry: Any) -> None:
        place = self._places.of_entry(entry)
        self._row(FAILED, -1, entry, entry["size"], place, self.pool_number(pool_of(entry)))
        self._refused.append(len(self.action) - 1)
        self._complete()
        page = self._settings.large_segment_size
        asked = segment_size(entry["size"], page)
        if self._settings.expandable_segments:
            asked += page  # pages are mapped behind what is there already: up to one more than the request
        self._calls.oom(entry, asked)

    def _snapshot(self, at: int, entry: Any) -> None:
        """A snapshot changes nothing."""


class _Ranges:
    """Names of address ranges."""

    def __init__(self, ranges: list[tuple[int, int, str]]) -> None:
        self._ranges = sorted(ranges)
        self._starts = [start for start, _, _ in self._ranges]

    def at(self, address: int) -> str:
        at = bisect_right(self._starts, address) - 1
        return self._ranges[at][2] if at >= 0 and address < self._ranges[at][1] else ""


def _step_times(marks: list[Any]) -> list[int]:
    """When steps end: by the profiler's marks, else by the optimizer that steps."""
    steps = [mark["time_us"] for mark in marks if mark["name"].startswith("ProfilerStep") and _ends(mark)]
    if not steps:
        names = [mark["name"] for mark in marks if mark["name"].startswith("Optimizer.step") and _ends(mark)]
        rarest = min(set(names), key=lambda name: (names.count(name), name), default="")
        steps = [mark["time_us"] for mark in marks if mark["name"] == rarest and _ends(mark)]
    return sorted(steps)


def _ends(mark: Any) -> bool:
    return bool(mark.get("stage") == "END")


_READERS = {
    "alloc": History._alloc,
    "free_requested": History._free_requested,
    "free_completed": History._free_completed,
    "segment_alloc": History._segment_alloc,
    "segment_free": History._segment_free,
    "segment_unmap": History._segment_free,
    "segment_map": History._segment_map,
    "oom": History._oom,
    "snapshot": History._snapshot,
}
