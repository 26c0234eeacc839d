"""`Both`: two profiles and what makes their totals comparable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from gapless.model import Profile
from gapless.model.comparison import Measure, Unit


def stepped(profile: Profile) -> bool:
    """Whether something marks the steps of `profile`."""
    return profile.steps.count > 0 and profile.steps.source != "span"


class Both(NamedTuple):
    """Two profiles. `per` says what their numbers are a mean of; the whole trace counts once."""

    before: Profile
    after: Profile
    per: Literal["step", "trace"]

    @property
    def by(self) -> tuple[int, int]:
        """What the totals of each are divided by."""
        if self.per == "trace":
            return 1, 1
        return self.before.steps.count, self.after.steps.count

    def measure(self, name: str, pick: Callable[[Profile], float], unit: Unit = "ns") -> Measure:
        """A total of each, per step or trace."""
        by = self.by
        return Measure(name=name, before=pick(self.before) / by[0], after=pick(self.after) / by[1], unit=unit)

    def plain(self, name: str, pick: Callable[[Profile], float], unit: Unit) -> Measure:
        """A number of each that is no total; -1 where it is not known."""
        return Measure(name=name, before=pick(self.before), after=pick(self.after), unit=unit)


def both(before: Profile, after: Profile) -> Both:
    """Per step where both have steps, else by the whole."""
    return Both(before, after, "step" if stepped(before) and stepped(after) else "trace")
