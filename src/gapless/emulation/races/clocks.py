"""Who knows what to be done: a vector clock for each stream, one for the host, and what events stand for."""

from __future__ import annotations

from typing import NamedTuple

Clock = list[int]
Where = tuple[int, int]
"""Device index and stream id; of a process group its number and -1."""


class Moment(NamedTuple):
    """What an event stands for: all that its stream has been given, or has waited for, when it was recorded.

    `mark` is the number of the last work before it, on any stream.
    """

    owner: Clocks
    track: int
    clock: Clock
    mark: int
    stack: object


class Clocks:
    """A track for each stream, numbered as they show up; works are numbered in the order of their launch."""

    def __init__(self) -> None:
        self.tracks: dict[Where, int] = {}
        self.known: list[Clock] = []
        self.host: Clock = []
        self.mark = 0
        self.version = 0  # of `host`
        self._joined: list[int] = []

    def track(self, device: int, stream: int) -> int:
        """The track of that stream."""
        track = self.tracks.get((device, stream))
        if track is None:
            track = self.tracks[device, stream] = len(self.known)
            for clock in (*self.known, self.host):
                clock.append(0)
            self.known.append([0] * (track + 1))
            self._joined.append(-1)
        return track

    def launch(self, track: int) -> int:
        """The number of new work on that stream, which comes behind all that the host knows to be done."""
        known = self.known[track]
        if self._joined[track] != self.version:
            _join(known, self.host)
            self._joined[track] = self.version
        self.mark = known[track] = mark = self.mark + 1
        return mark

    def ordered(self, track: int, other: int, mark: int) -> bool:
        """Whether what is launched on `track` now comes behind work number `mark` of `other`."""
        return track == other or self.known[track][other] >= mark or self.host[other] >= mark

    # -- who waits ---------------------------------------------------------------------------------

    def recorded(self, track: int, stack: object) -> Moment:
        """What an event recorded now in that stream stands for."""
        clock = self.known[track].copy()
        _join(clock, self.host)
        return Moment(self, track, clock, self.mark, stack)

    def awaits(self, track: int, clock: Clock) -> None:
        """The stream of `track` goes on behind what `clock` knows."""
        _join(self.known[track], clock)

    def host_awaits(self, clock: Clock) -> None:
        """The host goes on behind what `clock` knows."""
        _join(self.host, clock)
        self.version += 1


def _join(into: Clock, other: Clock) -> None:
    """`other` is the same length, or shorter where it was copied before a stream showed up."""
    into[: len(other)] = map(max, into, other)
