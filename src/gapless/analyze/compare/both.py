"""`ProfilePair`: two profiles and what makes their totals comparable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from gapless.model import Profile
from gapless.model.comparison import Measure, Unit


def has_marked_steps(profile: Profile) -> bool:
    """Whether the steps of `profile` are marked in the trace."""
    return profile.steps.count > 0 and profile.steps.source != "span"


class ProfilePair(NamedTuple):
    """Two profiles; `per` says whether their totals are divided by the steps or compared as they are."""

    before: Profile
    after: Profile
    per: Literal["step", "trace"]

    @property
    def divisors(self) -> tuple[int, int]:
        """The number of steps of each profile, by which its totals are divided; 1 for whole traces."""
        if self.per == "trace":
            return 1, 1
        return self.before.steps.count, self.after.steps.count

    def measure(self, name: str, pick: Callable[[Profile], float], unit: Unit = "ns") -> Measure:
        """Compare what `pick` returns for both profiles: per step, or undivided if `per` is "trace"."""
        divisors = self.divisors
        return Measure(
            name=name, before=pick(self.before) / divisors[0], after=pick(self.after) / divisors[1], unit=unit
        )

    def measure_as_is(self, name: str, pick: Callable[[Profile], float], unit: Unit) -> Measure:
        """Return what `pick` returns for each profile, undivided; -1 where unknown."""
        return Measure(name=name, before=pick(self.before), after=pick(self.after), unit=unit)


def pair_profiles(before: Profile, after: Profile) -> ProfilePair:
    """Pair two profiles: per step if both have marked steps, else whole traces."""
    return ProfilePair(
        before, after, "step" if has_marked_steps(before) and has_marked_steps(after) else "trace"
    )
