"""Vector clocks of the streams and the host, and the moments at which events are recorded."""

from __future__ import annotations

from typing import NamedTuple

Clock = list[int]
StreamKey = tuple[int, int]
"""Device index and stream id; for a process group's stream minus the group's number."""


class RecordedEvent(NamedTuple):
    """A recorded event: `clock` is all work that its stream was given or had waited for by then.

    `mark` is the number of the last work before it, on any stream.
    """

    owner: Clocks
    track: int
    clock: Clock
    mark: int
    stack: object


class Clocks:
    """The vector clocks of one emulation, `by_track`: a track is a stream's number in order of first use.

    Work is numbered across all streams in the order of launch.
    """

    def __init__(self) -> None:
        self.tracks: dict[StreamKey, int] = {}
        self.by_track: list[Clock] = []
        self.host: Clock = []
        self.mark = 0
        self.version = 0  # of `host`
        self._joined: list[int] = []

    def track(self, device: int, stream: int) -> int:
        """Return the track of a stream, adding one for a new stream."""
        track = self.tracks.get((device, stream))
        if track is None:
            track = self.tracks[device, stream] = len(self.by_track)
            for clock in (*self.by_track, self.host):
                clock.append(0)
            self.by_track.append([0] * (track + 1))
            self._joined.append(-1)
        return track

    def launch(self, track: int) -> int:
        """Return the number of new work on `track`, ordered after all that the host knows to be done."""
        clock = self.by_track[track]
        if self._joined[track] != self.version:
            _join(clock, self.host)
            self._joined[track] = self.version
        self.mark = clock[track] = mark = self.mark + 1
        return mark

    def ordered(self, track: int, other: int, mark: int) -> bool:
        """Whether work launched on `track` now is ordered after work number `mark` of `other`."""
        return track == other or self.by_track[track][other] >= mark or self.host[other] >= mark

    # -- waits -------------------------------------------------------------------------------------

    def record_event(self, track: int, stack: object) -> RecordedEvent:
        """Return the moment of an event recorded now on `track`."""
        clock = self.by_track[track].copy()
        _join(clock, self.host)
        return RecordedEvent(self, track, clock, self.mark, stack)

    def order_after(self, track: int, clock: Clock) -> None:
        """Order further work of `track` after the work in `clock`."""
        _join(self.by_track[track], clock)

    def order_host_after(self, clock: Clock) -> None:
        """Order the host after the work in `clock`."""
        _join(self.host, clock)
        self.version += 1


def _join(into: Clock, other: Clock) -> None:
    """Raise `into` to the element-wise maximum with `other`, which may lack streams added after its copy."""
    into[: len(other)] = map(max, into, other)
