"""What the rules over a `Profile` share: its costs gathered by place, and what they amount to in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gapless.model import Site
from gapless.model.profile import Cause, Cost, Profile
from gapless.model.rule import Hit
from gapless.model.wording import duration, percent, three_digits

MATTERS = 0.05
"""A cause that takes less of the steps than this is left alone: the share from which the TensorBoard plugin
warned of data loading."""
SMALL = 0.01
"""A place with less than this share of the steps is not named by itself."""
MOST_PLACES = 5
"""More places of one cause than this are one finding: what they share is what must change."""
FULL = 0.9
"""From this share of the GPU's memory on the next request may not fit; the TensorBoard plugin's bound."""
COMPILING = ("convert_frame", "codegen_and_compile", "compile_fx_inner", "async_compile", "autotune", "nvrtc")
"""Parts of names that occur, in lower case, only while something is compiled, and not when it runs."""
COMPILE_ONCE = (
    "`TORCH_LOGS=recompiles` shows why it recompiles; mark the changing dimension with "
    "`torch._dynamo.mark_dynamic`, or pad it to a few sizes",
    "stop recompiling: `torch._dynamo.mark_dynamic`",
)
"""Remedy and change, as all that follow."""
ONE_LAUNCH = (
    'compiled code launches here: `torch.compile(model, mode="reduce-overhead")` turns all its kernels into '
    "one launch, if shapes stay the same",
    '`torch.compile(mode="reduce-overhead")`',
)
_COMPILED = re.compile(
    r"torchinductor|_inductor/output_code.py: |CompiledFunction|CompiledFxGraph|Torch-Compiled|^triton_",
    re.MULTILINE,
)
"""Parts of names of what `torch.compile` has made, and of what calls it."""
NO_EMPTY_CACHE = (
    "remove `torch.cuda.empty_cache()` from the loop: cached memory is reused automatically",
    "remove `torch.cuda.empty_cache()` from the loop",
)
_LAUNCH = re.compile(r"(?:cu|cuda|hip)(?:Ext)?(?:Module)?Launch\w*Kernel")
_WITHOUT = "kernels launched outside operators (Triton, custom)"
_LARGE_SEGMENT = 20 << 20
"""The segment that the caching allocator takes for requests of 1 to 10 MiB."""
_OFTEN = 0.1
"""Falls of the reserved memory per step from which they are part of the training and not an exception."""


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


def known(value: float) -> bool:
    """Whether a number was recorded: those that were not are -1."""
    return value >= 0


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
    def words(self) -> str:
        """All names that tell what ran here, a line each: places, operators, functions of the stack."""
        found: list[str] = []
        for cost in self.costs:
            site = cost.site
            found += (cost.place, site.operator, site.call, site.detail, site.node)
            found += (f"{frame.file}: {frame.function}" for frame in site.stack)
        return "\n".join(dict.fromkeys(filter(None, found))).replace("\\", "/")

    @property
    def nowhere(self) -> bool:
        """Whether nothing tells which place it is."""
        site = self.site
        return site is None or (site.line is None and not (site.operator or site.call or site.node))

    def hit(self, profile: Profile, evidence: Sequence[str], remedy: str, change: str = "") -> Hit:
        """This place as a hit with that evidence; `change` in place of the rule's own."""
        longest = max(self.costs, key=lambda cost: cost.end - cost.start)
        return Hit(
            evidence=tuple(filter(None, evidence)),
            remedy=remedy,
            change=change,
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
        """``the GPU idles 18.3 ms of each 187 ms step, 9.8 %``; in which steps, where it is not in all."""
        idle = min(max(self.idle, 0), max(profile.idle, 0))
        count = profile.steps.count
        if 0 < self.steps < count:
            least = "" if len(self.costs) == 1 else "at least "
            share = percent(part(profile, idle))
            text = f"{duration(idle)} in {least}{self.steps} of {count} steps, {share} of the time of all"
        else:
            text = of_steps(profile, idle)
        return f"the GPU idles {text}{f', at {self.places} places' if self.places > 1 else ''}"


def spots(profile: Profile, *causes: Cause) -> list[Spot]:
    """The idleness with one of `causes`, by place, the longest first."""
    found: dict[tuple[object, ...], list[Cost]] = {}
    for cost in profile.costs:
        if cost.cause in causes and cost.idle > 0:
            found.setdefault(_place(cost), []).append(cost)
    gathered = []
    for costs in found.values():
        costs.sort(key=lambda cost: -cost.idle)
        gathered.append(Spot(costs[0].site, tuple(costs)))
    return sorted(gathered, key=lambda spot: -spot.idle)


def _place(cost: Cost) -> tuple[object, ...]:
    site = cost.site
    line = site.line
    if line is None:
        return (site.operator, site.call, site.detail, site.node, cost.place)
    return (line.file, line.line, line.function, site.in_backward)


def of_all(spot: Spot) -> Spot:
    """`spot`, told of the whole and not of its place."""
    return Spot(None, spot.costs, spot.places)


def between_kernels(spot: Spot) -> bool:
    """Whether this is no place of the CPU: the GPU's own gaps between operations that were queued."""
    return spot.nowhere and not any(cost.place for cost in spot.costs)


def idle_of(found: Iterable[Spot]) -> int:
    """The idleness of all these places."""
    return sum(spot.idle for spot in found)


def together(found: Sequence[Spot]) -> Spot:
    """Several places as one, at none of them; a single one stays where it is, if it is anywhere."""
    if len(found) == 1:
        return of_all(found[0]) if found[0].nowhere else found[0]
    costs = tuple(cost for spot in found for cost in spot.costs)
    return Spot(None, costs, sum(spot.places for spot in found))


def told(
    profile: Profile, found: Sequence[Spot], least: float = SMALL, unknown: float = MATTERS
) -> list[Spot]:
    """The places worth a finding each, from `least` of the steps on, and last the others as one.

    Where no line is known, a place is an operator, which may stand at many lines: it must cost `unknown`.
    """
    large = [
        spot
        for spot in found
        if not spot.nowhere
        and part(profile, spot.idle) >= (least if spot.site and spot.site.line else max(least, unknown))
    ][:MOST_PLACES]
    rest = [spot for spot in found if spot not in large]
    if rest and (not large or part(profile, idle_of(rest)) >= SMALL):
        return [*large, together(rest)]
    return large


def matters(profile: Profile, found: Iterable[Spot]) -> bool:
    """Whether these places cost enough of the steps to speak of."""
    return part(profile, min(idle_of(found), profile.idle)) >= MATTERS


def called(profile: Profile, spot: Spot) -> str:
    """``3.5 calls per step (cudaMalloc, cudaFree), 1.2 ms on the CPU``, "" where none were counted."""
    calls = sum(cost.calls for cost in spot.costs)
    if calls <= 0:
        return ""
    names = dict.fromkeys(cost.site.operator for cost in spot.costs if cost.calls > 0 and cost.site.operator)
    kinds = f" ({', '.join(list(names)[:4])})" if names else ""
    number = three_digits(per_step(profile, calls))
    blocked = per_step(profile, sum(cost.blocked for cost in spot.costs))
    keeps = f", {duration(blocked)} on the CPU" if blocked > 0 else ""
    return f"{number} {'call' if number == '1' else 'calls'} {a_step(profile)}{kinds}{keeps}"


def mostly_in(spot: Spot, name: re.Pattern[str]) -> bool:
    """Whether most of it is at operators or regions whose name begins or ends so."""
    return 2 * sum(cost.idle for cost in spot.costs if name.search(cost.site.operator)) > spot.idle


def compiled(spot: Spot) -> bool:
    """Whether most of it is in what `torch.compile` has made."""
    found = (cost.idle for cost in spot.costs if _COMPILED.search(Spot(None, (cost,)).words))
    return 2 * sum(found) > spot.idle


def unseen(spot: Spot) -> bool:
    """Whether most of it lies between operators, where nothing was recorded."""
    return 2 * sum(cost.idle for cost in spot.costs if not (cost.site.line or cost.site.operator)) > spot.idle


def _operator(cost: Cost) -> str:
    """The operator; of launches without one, what they launch."""
    bare = cost.cause == "launch" and _LAUNCH.match(cost.site.operator)
    return _WITHOUT if bare else cost.site.operator


def mostly(spot: Spot) -> str:
    """``most of it at aten::linear, aten::mm``: what idles longest, where that says more than the place."""
    idle: dict[str, int] = {}
    for cost in spot.costs:
        line = cost.site.line if spot.site is None else None
        place = f"{line.file.rpartition('/')[2]}:{line.line}" if line else _operator(cost)
        if place or not cost.place:
            idle[place] = idle.get(place, 0) + cost.idle
    if 2 * idle.pop("", 0) > spot.idle:
        return "most of it between operators, in unrecorded code" if idle else ""
    largest = sorted(idle, key=lambda place: -idle[place])[:3]
    alone = spot.site is not None and spot.site.line is None
    return f"most of it at {', '.join(largest)}" if largest and not alone else ""


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


def first_only(profile: Profile, spot: Spot) -> bool:
    """Whether `spot` is met in the first step and in none after it, as far as several steps tell."""
    start = profile.steps.start
    first = len(start) > 1 and all(cost.start < start[1] for cost in spot.costs)
    return first and steps_hit(profile, spot) <= 1


def saws(profile: Profile) -> bool:
    """Whether memory is given back to the driver in training and taken again."""
    memory, steps = profile.memory, profile.steps
    whole = steps.source == "span"
    if memory.drops < (3 if whole else 2) or (steps.count < 2 and not whole):
        return False
    often = memory.drops >= _OFTEN * steps.count
    costly = part(profile, idle_of(spots(profile, "allocator"))) >= SMALL
    much = memory.taken_again >= max(_LARGE_SEGMENT, memory.given_back / 2, memory.peak_reserved * SMALL)
    return (often or costly) and much


def full(profile: Profile) -> bool:
    """Whether nearly all memory of the GPU was reserved; False where either is unknown."""
    return 0 < FULL * profile.gpu_memory <= profile.memory.peak_reserved


def few_sizes(profile: Profile) -> str:
    """What to do against fragments, in words that follow a colon or a comma."""
    padding = (
        "pad variable lengths to a few sizes (multiples of 64 or 128) or batch samples of similar length"
    )
    if profile.vendor == "amd":
        return padding  # expandable segments came to ROCm late, and are refused before
    return f"set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, or {padding}"
