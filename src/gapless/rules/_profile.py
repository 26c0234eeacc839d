"""What the rules over a `Profile` share: costs gathered by place, and numbers in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite

from gapless.model import Site
from gapless.model.profile import Cause, Cost, Profile
from gapless.model.rule import Hit

MATTERS = 0.05
"""A cause that takes less of the steps than this is left alone: the share from which the TensorBoard plugin
warned of data loading."""
SMALL = 0.01
"""A place with less than this share of the steps is not named by itself."""
MOST_PLACES = 5
"""More places of one cause than this are one finding: what they share is what must change."""
FULL = 0.9
"""From this share of the device's memory on the next request may not fit; the TensorBoard plugin's bound."""
_LARGE_SEGMENT = 20 << 20
"""The segment that the caching allocator takes for requests of 1 to 10 MiB."""
_OFTEN = 0.1
"""Falls of the reserved memory per step from which they are part of the training and not an exception."""


def three_digits(value: float) -> str:
    """`value` with three significant digits and no exponent: ``187``, ``18.3``, ``4.05``."""
    decimals = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def duration(ns: float) -> str:
    """Nanoseconds as people write them: ``4.1 µs``, ``18.3 ms``, ``1.21 s``."""
    for unit, length in (("s", 1e9), ("ms", 1e6)):
        if ns >= 0.9995 * length:
            return f"{three_digits(ns / length)} {unit}"
    return f"{three_digits(max(ns, 0) / 1e3)} µs"


def size(nbytes: int) -> str:
    """Bytes as people write them, powers of 1000: ``512 B``, ``12.3 GB``."""
    for unit, length in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= 0.9995 * length:
            return f"{three_digits(nbytes / length)} {unit}"
    return f"{max(nbytes, 0)} B"


def percent(fraction: float) -> str:
    """A part of a whole: ``9.8 %``, ``33 %``; what is no part of it is cut off at 0 and 100."""
    value = 100 * min(max(fraction, 0.0), 1.0)
    if 0 < value < 0.05:
        return "under 0.1 %"
    return f"{value:.0f} %" if value >= 9.95 or value == 0 else f"{value:.1f} %"


def part(profile: Profile, ns: float) -> float:
    """`ns` as a part of the steps' time, 0 to 1; 0 where there are no steps."""
    total = profile.steps.total
    return min(max(ns / total, 0.0), 1.0) if total > 0 else 0.0


def per_step(profile: Profile, amount: float) -> float:
    """`amount` divided by the number of steps."""
    return amount / max(profile.steps.count, 1)


def of_steps(profile: Profile, ns: float) -> str:
    """``18.3 ms of each 187 ms step, 9.8 %``, of the trace where no steps are marked."""
    steps, share = profile.steps, percent(part(profile, ns))
    if steps.count > 1:
        return f"{duration(per_step(profile, ns))} of each {duration(steps.mean)} step, {share}"
    whole = "trace" if steps.source == "span" else "step"
    return f"{duration(ns)} of the {duration(steps.total)} {whole}, {share}"


def a_step(profile: Profile) -> str:
    """``per step``, or ``in all`` where there is only one."""
    return "per step" if profile.steps.count > 1 else "in all"


@dataclass(frozen=True)
class Spot:
    """The costs at one place, or at several that are told together (`site` None, `places` of them)."""

    site: Site | None
    costs: tuple[Cost, ...]
    places: int = 1

    @property
    def idle(self) -> int:
        return sum(cost.idle for cost in self.costs)

    @property
    def steps(self) -> int:
        """In at least how many steps."""
        return max((cost.steps for cost in self.costs), default=0)

    @property
    def words(self) -> tuple[str, ...]:
        """The names that tell what ran here: operators, calls, functions of the stack."""
        found = [word for cost in self.costs for word in words(cost.site)]
        return tuple(dict.fromkeys(found))

    def hit(self, profile: Profile, evidence: Sequence[str], remedy: str) -> Hit:
        """This place as a hit with that evidence."""
        longest = max(self.costs, key=lambda cost: cost.end - cost.start)
        return Hit(
            evidence=tuple(filter(None, evidence)),
            remedy=remedy,
            site=self.site,
            idle=min(max(self.idle, 0), max(profile.idle, 0)),
            blocked=max(sum(cost.blocked for cost in self.costs), 0),
            calls=max(sum(cost.calls for cost in self.costs), 0),
            bytes=max(sum(cost.bytes for cost in self.costs), 0),
            steps=max(min(self.steps, profile.steps.count), 0),
            start=longest.start,
            end=longest.end,
        )

    def idle_for(self, profile: Profile) -> str:
        """``idle for 18.3 ms of each 187 ms step, 9.8 %``; in which steps, where it is not in all."""
        idle = min(max(self.idle, 0), max(profile.idle, 0))
        text = f"idle for {of_steps(profile, idle)}"
        count = profile.steps.count
        if 0 < self.steps < count:
            least = "" if len(self.costs) == 1 else "at least "
            text += f", in {least}{self.steps} of {count} steps"
        if self.places > 1:
            text += f", at {self.places} places"
        return text


def words(site: Site) -> tuple[str, ...]:
    """The names at a place: operator, call, what else is told of it, and the functions of its stack."""
    frames = (f"{frame.file}: {frame.function}" for frame in site.stack)
    return tuple(filter(None, (site.operator, site.call, site.detail, site.node, *frames)))


def spots(profile: Profile, *causes: Cause) -> list[Spot]:
    """The idleness with one of `causes`, by place, the longest first."""
    found: dict[tuple[object, ...], list[Cost]] = {}
    for cost in profile.costs:
        if cost.cause in causes and cost.idle > 0:
            found.setdefault(_place(cost.site), []).append(cost)
    gathered = []
    for costs in found.values():
        costs.sort(key=lambda cost: -cost.idle)
        gathered.append(Spot(costs[0].site, tuple(costs)))
    return sorted(gathered, key=lambda spot: -spot.idle)


def _place(site: Site) -> tuple[object, ...]:
    line = site.line
    if line is None:
        return (site.operator, site.call, site.detail, site.node)
    return (line.file, line.line, line.function, site.in_backward)


def idle_of(found: Iterable[Spot]) -> int:
    """The idleness of all these places."""
    return sum(spot.idle for spot in found)


def together(found: Sequence[Spot]) -> Spot:
    """Several places as one, at none of them; a single one stays where it is."""
    if len(found) == 1:
        return found[0]
    costs = tuple(cost for spot in found for cost in spot.costs)
    return Spot(None, costs, sum(spot.places for spot in found))


def told(profile: Profile, found: Sequence[Spot]) -> list[Spot]:
    """The places worth a finding each, and last the others together where they are worth one."""
    large = [spot for spot in found[:MOST_PLACES] if part(profile, spot.idle) >= SMALL]
    rest = list(found[len(large) :])
    if rest and part(profile, idle_of(rest)) >= SMALL:
        return [*large, together(rest)]
    return large


def matters(profile: Profile, found: Iterable[Spot]) -> bool:
    """Whether these places cost enough of the steps to speak of."""
    return part(profile, min(idle_of(found), profile.idle)) >= MATTERS


def called(profile: Profile, spot: Spot) -> str:
    """``3.5 calls per step (cudaMalloc, cudaFree) keep the host for 1.2 ms``, "" where none were counted."""
    calls = sum(cost.calls for cost in spot.costs)
    if calls <= 0:
        return ""
    names = dict.fromkeys(cost.site.operator for cost in spot.costs if cost.calls > 0 and cost.site.operator)
    kinds = f" ({', '.join(list(names)[:4])})" if names else ""
    number = three_digits(per_step(profile, calls))
    blocked = per_step(profile, sum(cost.blocked for cost in spot.costs))
    keeps = f", {duration(blocked)} of the host" if blocked > 0 else ""
    return f"{number} {'call' if number == '1' else 'calls'} {a_step(profile)}{kinds}{keeps}"


def steps_hit(profile: Profile, spot: Spot) -> int:
    """In at least how many steps the costs of `spot` occur: as counted, or by where the longest ones lie."""
    bounds = list(zip(profile.steps.start, profile.steps.end, strict=False))
    seen = {
        number
        for cost in spot.costs
        for number, (start, end) in enumerate(bounds)
        if start <= cost.start < end
    }
    return max(spot.steps, len(seen))


def recurs(profile: Profile, spot: Spot) -> bool:
    """Whether `spot` belongs to training and not to its beginning: it is met when the first steps are over.

    One step alone cannot tell. Of five or more, two may warm up (the optimizer's state is made in the first,
    what it fragments is asked for in the second).
    """
    count = profile.steps.count
    return count >= 2 and steps_hit(profile, spot) >= (3 if count >= 5 else 2)


def saws(profile: Profile) -> bool:
    """Whether memory is given back to the driver in training and taken again."""
    memory = profile.memory
    count = profile.steps.count
    least = 3 if count < 2 and profile.steps.source == "span" else 2
    if (count < 2 and profile.steps.source != "span") or memory.drops < least:
        return False
    often = memory.drops >= _OFTEN * count
    costly = part(profile, idle_of(spots(profile, "allocator"))) >= SMALL
    much = memory.taken_again >= max(_LARGE_SEGMENT, memory.given_back / 2, memory.peak_reserved * SMALL)
    return (often or costly) and much


def full(profile: Profile) -> bool:
    """Whether nearly all memory of the device was reserved; False where either is unknown."""
    return 0 < FULL * profile.gpu_memory <= profile.memory.peak_reserved


def known(value: float) -> bool:
    """Whether a number was recorded: those that were not are -1."""
    return isfinite(value) and value >= 0


def few_sizes(profile: Profile) -> str:
    """What to do against fragments, in words that follow a colon or a comma."""
    padding = "pad variable lengths to few sizes (multiples of 64 or 128) or batch samples of like length"
    if profile.vendor == "amd":
        return padding  # expandable segments came to ROCm late, and are refused before
    return f"set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, or {padding}"
