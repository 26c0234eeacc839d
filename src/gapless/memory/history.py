"""Turn a snapshot's trace into the events of a `MemoryRun`: requests of the program, not allocator
actions.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from gapless.memory.calls import DriverCallCounter, peak_reserved
from gapless.memory.frames import PlaceTable
from gapless.memory.rewind import FREE as IDLE
from gapless.memory.rewind import FREES, WAITING, pool_of
from gapless.memory.settings import NO_LIMIT, Settings
from gapless.memory.sizes import SMALL, SMALL_SEGMENT, round_size, segment_size
from gapless.memory.start import StartState
from gapless.memory.timing import has_times
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
    """Reads `trace` from its beginning into the columns of a `MemoryRun`."""

    def __init__(
        self, trace: list[Any], settings: Settings, start: StartState, places: PlaceTable, marks: list[Any]
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
        self.timed = has_times(trace)
        self._trace = trace
        self._settings = settings
        self._places = places
        self._origin = trace[0]["time_us"] if self.timed else 0
        self._start = start
        self._marks = _step_times(marks) if self.timed else []
        self._count = 0
        self._live: dict[int, int] = {}
        self._ident_by_start_address: dict[int, int] = {}
        self._pending: dict[int, int] = {}
        self._completions: list[tuple[int, Any]] = []
        self._synced = self._emptied = False
        # Releases at the very beginning may be the end of a series: what came before is lost.
        self._opening = True
        self._private = _RangeNames(start.private)
        self._retired: set[int] = set()
        self._refused: list[int] = []
        self._user_releases: dict[int, bool] = {}
        self._calls = DriverCallCounter(start)
        self._peak_reserved = peak_reserved(trace, start.reserved)
        self._unknown_actions: dict[str, int] = {}
        self._read()

    # What the rest of the run is made of ----------------------------------------------------------

    def pool_number(self, name: str) -> int:
        """Return the index of a private pool in `pools`, adding it if it is new."""
        if name not in self.pools:
            self.pools.append(name)
        return self.pools.index(name)

    def ident_at_start(self, address: int) -> int:
        """Return the allocation that was at `address` when recording began."""
        ident = self._ident_by_start_address.get(address)
        if ident is None:
            ident = self._ident_by_start_address[address] = self._new()
        return ident

    def start_segments(self) -> tuple[StartSegment, ...]:
        """Return the memory reserved when recording began; allocations are numbered as in the columns."""
        segments, rewind = [], self._start.rewind
        for address in sorted(rewind.ranges):
            home = rewind.ranges[address]
            blocks = [self._block(start) for start in home.starts]
            segments.append(
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
        return tuple(segments)

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
            spaces=tuple((stream, small, at) for stream, small, at in calls.spaces.first_addresses),
            floor=calls.floor,
            ceiling=calls.ceiling,
            told=calls.device_free >= 0,
        )

    def refusals(self) -> tuple[Refusal, ...]:
        """Return what is known of the requests that failed."""
        outcomes = zip(self._refused, self._calls.refusals, strict=True)
        return tuple(Refusal(event=row, reserved=reserved, free=free) for row, (reserved, free) in outcomes)

    @property
    def began(self) -> int:
        """Start of the trace on the recording's clock, in nanoseconds; -1 if it has no times."""
        return 1000 * self._origin if self.timed else -1

    def limit(self) -> int:
        """Return the device memory this process could get, in bytes; -1 if no request ran into its limit.

        A failed request records what the device had left. If that is missing, the most ever reserved is the
        best lower bound; refused amounts are upper bounds.
        """
        calls = self._calls
        if calls.device_free < 0:
            return calls.floor if calls.ceiling >= 0 else -1
        most = calls.device_free if calls.ceiling < 0 else min(calls.device_free, calls.ceiling - 1)
        return max(most, calls.floor)

    def notes(self) -> list[str]:
        lines = [
            f"{count} entries of the unknown kind {kind!r} were skipped"
            for kind, count in sorted(self._unknown_actions.items())
        ]
        calls = self._calls
        if 0 <= calls.ceiling <= calls.floor:
            lines.append("the memory available to this process changed during the run")
        return lines

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
                self._unknown_actions[entry["action"]] = self._unknown_actions.get(entry["action"], 0) + 1
            else:
                self._opening &= entry["action"] in FREES
                reader(self, at, entry)
        self._write_completions()

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
            self._write_completions()
        ident = self._live[entry["addr"]] = self._new()
        pool = self.pool_number(pool_of(entry) or self._private.at(entry["addr"]))
        self._row(ALLOC, ident, entry, entry["size"], self._places.of_entry(entry), pool)
        self._write_completions()
        self._calls.end_release()

    def _request_free(self, at: int, entry: Any) -> None:
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

    def _complete_free(self, at: int, entry: Any) -> None:
        ident = self._pending.pop(entry["addr"], None)
        if ident is None:  # it was freed before recording began and waited for a stream
            ident = self.ident_at_start(entry["addr"])
        if ident >= 0:
            self._completions.append((ident, entry))

    def _write_completions(self) -> None:
        """Write the completions seen while a request was served.

        They come before the request, unless it waited for them itself (`_synced`): then it released memory as
        well, and a replay waits in the same way.
        """
        for ident, entry in self._completions:
            self._row(DONE, ident, entry)
        self._completions, self._synced = [], False

    def _segment_alloc(self, at: int, entry: Any) -> None:
        self._calls.alloc(entry)

    def _segment_free(self, at: int, entry: Any) -> None:
        if not self._continues_release(at):
            self._emptied = self._opening or self._is_user_release(entry) or not self._serves_request(at)
        if self._emptied:
            if not self._continues_call(at, self._is_user_release(entry)):
                self._row(EMPTY, -1, entry)
                self._write_completions()
            self._calls.free(entry, releasing=False)
        else:
            self._synced = not self._settings.collects  # garbage collection does not wait for streams
            self._calls.free(entry, releasing=True)
        pool = self._private.at(entry["addr"]) or pool_of(entry)
        number = self.pool_number(pool)
        if number and number not in self._retired:
            self._retired.add(number)
            self._row(RETIRE, number, entry)

    def _continues_release(self, at: int) -> bool:
        """Whether this release continues the previous one, whose cause is already determined."""
        entry, before = self._trace[at], self._trace[at - 1] if at else {"action": ""}
        return before["action"] in FREES and not (
            self._opening or self._is_user_release(entry) or self._is_user_release(before)
        )

    def _is_user_release(self, entry: Any) -> bool:
        """Whether the frames show that the user emptied the cache; cached by the identity of `frames`."""
        frames = entry.get("frames") or ()
        is_user = self._user_releases.get(id(frames))
        if is_user is None:
            is_user = self._user_releases[id(frames)] = any(
                isinstance(frame, dict)
                and ("emptyCache" in str(frame.get("name")) or frame.get("name") == "empty_cache")
                for frame in frames
            )
        return is_user

    def _continues_call(self, at: int, is_user: bool) -> bool:
        """Whether the entry before belongs to the same call."""
        if not at or self._trace[at - 1]["action"] not in FREES:
            return False
        return not is_user or self._is_user_release(self._trace[at - 1])

    def _serves_request(self, at: int) -> bool:
        """Whether memory is released to serve a request: what follows are more releases, or a failure.

        The frames of the request show it. Without frames, the request must have been one that the device
        could not serve: with what was reserved it exceeds the peak.
        """
        if self._calls.releasing:
            return True
        release = self._trace[at]
        for following in range(at + 1, len(self._trace)):
            entry = self._trace[following]
            if entry["action"] in FREES and entry.get("frames") != release.get("frames"):
                # each has the frames of its allocation, as recordings of allocations only write them
                return False
            if entry["action"] in (*FREES, "free_completed", "snapshot"):
                continue
            if entry["action"] not in ("segment_alloc", "segment_map", "oom"):
                return False
            if release.get("frames") and release["frames"] == entry.get("frames"):
                return True
            if entry["action"] == "oom":
                return True
            return self._calls.reserved + entry["size"] > self._peak_reserved and not self._had_free_segment(
                at, following
            )
        return False

    def _had_free_segment(self, at: int, following: int) -> bool:
        """Whether a segment released from `at` on would have served the request after them."""
        request = next((entry for entry in self._trace[following:] if entry["action"] == "alloc"), None)
        if request is None or self._completions or self._settings.max_split_size < NO_LIMIT:
            return False
        size = round_size(request["size"], self._settings.divisions)
        return any(
            entry["stream"] == request["stream"]
            and entry["size"] >= size
            and (entry["size"] <= SMALL_SEGMENT) == (size <= SMALL)
            for entry in self._trace[at:following]
            if entry["action"] in FREES
        )

    def _segment_map(self, at: int, entry: Any) -> None:
        self._calls.map(entry)

    def _oom(self, at: int, entry: Any) -> None:
        place = self._places.of_entry(entry)
        self._row(FAILED, -1, entry, entry["size"], place, self.pool_number(pool_of(entry)))
        self._refused.append(len(self.action) - 1)
        self._write_completions()
        page = self._settings.large_segment_size
        needed = segment_size(entry["size"], page)
        if self._settings.expandable_segments:
            needed += page  # pages are mapped behind existing ones: up to one more than the request
        self._calls.oom(entry, needed)

    def _snapshot(self, at: int, entry: Any) -> None:
        """Ignore the mark of a snapshot."""


class _RangeNames:
    """Looks up the name of an address range."""

    def __init__(self, ranges: list[tuple[int, int, str]]) -> None:
        self._ranges = sorted(ranges)
        self._starts = [start for start, _, _ in self._ranges]

    def at(self, address: int) -> str:
        at = bisect_right(self._starts, address) - 1
        return self._ranges[at][2] if at >= 0 and address < self._ranges[at][1] else ""


def _step_times(marks: list[Any]) -> list[int]:
    """Return the times of step ends: from the profiler's marks, else from the rarest optimizer step."""
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
    "free_requested": History._request_free,
    "free_completed": History._complete_free,
    "segment_alloc": History._segment_alloc,
    "segment_free": History._segment_free,
    "segment_unmap": History._segment_free,
    "segment_map": History._segment_map,
    "oom": History._oom,
    "snapshot": History._snapshot,
}
