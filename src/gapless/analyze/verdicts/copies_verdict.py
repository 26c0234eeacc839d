"""What the verdict on a profile says where copies between host and device take most of its time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gapless.analyze.phrases.copy_share import MIN_CAUSE_SHARE, copies_alone
from gapless.model import Change, Finding, Profile
from gapless.model.copies import STAGED, Memory
from gapless.model.profile import CopyTime
from gapless.model.wording import duration, percent, size
from gapless.model.wording import number as wording_number

_PART = 0.2
"""A kind of copies with less than this part of the time of all is not told by itself."""
_NEAR = 0.85
"""From this part of what the link can do on, memory and order do not matter."""
_MEMORY: dict[Memory, str] = {
    "pageable": "pageable",
    "pinned": "pinned",
    "managed": "managed memory",
    "unknown": "",
}
_PIN = {
    True: "pin it and copy with `non_blocking=True`",
    False: "copy to the CPU into pinned memory, allocated once",
}


def sentence(profile: Profile, what: str, of: str = "") -> str:
    """The headline: the share of `what`, which copies, how fast; `of` says whose, where there are ranks."""
    alone, kinds = copies_alone(profile), _main(profile)
    share = f"{percent(alone / profile.steps.total)} of {what}{of}"
    order = _order(profile)
    if len(kinds) == 1:
        (one,) = kinds
        way = "to the GPU" if one.to_device else "to the CPU"
        told = ", ".join(part for part in (share, _MEMORY[one.memory], order) if part)
        found = f"Copies {way} take {told}: {_rate(one)}"
    else:
        told = "; ".join(
            f"to the {'GPU' if one.to_device else 'CPU'} {_MEMORY[one.memory]}".rstrip() + f", {_rate(one)}"
            for one in kinds
        )
        found = f"Copies take {', '.join(part for part in (share, order) if part)}: {told}"
    idle = profile.idle / profile.steps.total
    return f"{found}; the GPU idles another {percent(idle)}" if idle >= 0.05 else found


def why(profile: Profile) -> Iterator[str]:
    """What was copied, and what the link can do."""
    per = max(profile.steps.count, 1)
    each = " per step" if per > 1 else ""
    for one in _main(profile):
        side = "from" if one.to_device else "to"
        memory = (
            f" {side} {_MEMORY[one.memory].removesuffix(' memory')} memory" if _MEMORY[one.memory] else ""
        )
        told = (
            f"To the {'GPU' if one.to_device else 'CPU'}: {size(round(one.bytes / per))} in "
            f"{_copies(one.count / per)}{memory} {'take' if one.count > per else 'takes'} "
            f"{duration(one.time / per)}{each}"
        )
        yield f"{told}; {_could(one)}"


def actionable(profile: Profile, findings: Sequence[Finding]) -> bool:
    """Whether something can be done about these copies besides copying less."""
    beside = overlapped(profile, profile.steps.mean) >= MIN_CAUSE_SHARE * profile.steps.mean
    return any(map(_slow, _main(profile))) or (beside and any(one.code == "GAP302" for one in findings))


def pins(profile: Profile, findings: Sequence[Finding]) -> tuple[Change, ...]:
    """The changes of memory that make copies faster, with the steps before and after."""
    per, before = max(profile.steps.count, 1), profile.steps.mean
    made = []
    for to_device, saved in _saved(profile).items():
        if saved / per < 0.01 * before:
            continue
        wanted = "h2d" if to_device else "d2h"
        at = [
            number
            for number, one in enumerate(findings)
            if any(site.mechanism == wanted and site.detail == "pageable" for site in one.sites)
            and one.bytes > STAGED
        ]
        at.sort(key=lambda number: -findings[number].bytes)
        after = max(before - saved / per, 0.0)
        made.append(_change(_PIN[to_device], findings, at, before, after))
        before = after
    return tuple(made)


def _change(what: str, findings: Sequence[Finding], at: Sequence[int], before: float, after: float) -> Change:
    """The change that mends these findings, the first of which has the most bytes."""
    first = findings[at[0]] if at else None
    line = first.line if first is not None else None
    lines = {one.line for number in at for one in findings[number].lines if line and one.file == line.file}
    return Change(
        what=what,
        line=line,
        lines=tuple(sorted(lines)),
        place=first.place if first is not None else "",
        before=before,
        after=after,
        bound=True,
        codes=tuple(dict.fromkeys(findings[number].code for number in at)),
        findings=tuple(sorted(at)),
    )


def overlapped(profile: Profile, left: float) -> float:
    """What copying beside kernels saves of a step of `left` nanoseconds, at most."""
    per = max(profile.steps.count, 1)
    kernels = profile.split.kernel / per
    return min(max(left - kernels - profile.idle / per, 0.0), kernels)


def _saved(profile: Profile) -> dict[bool, float]:
    """What pinned memory saves in each direction, in all steps: by the replay, else by the rates."""
    prices = profile.prices
    if prices is not None and not prices.refused and prices.span:
        return {True: prices.pinned_to_device, False: prices.pinned - prices.pinned_to_device}
    found = {True: 0.0, False: 0.0}
    for one in profile.copies:
        if one.memory == "pageable" and one.rate < one.reach:
            found[one.to_device] += one.alone * (1 - one.rate / one.reach)
    return found


def _main(profile: Profile) -> list[CopyTime]:
    kinds = [one for one in profile.copies if one.alone >= _PART * copies_alone(profile)]
    return sorted(kinds, key=lambda one: -one.alone)


def _slow(one: CopyTime) -> bool:
    """Whether pinned memory may make them faster; of AMD's copies the memory is not known."""
    return one.memory != "pinned" and (not one.reach or one.rate < _NEAR * one.reach)


def _order(profile: Profile) -> str:
    """Whether copies wait for one another and for kernels."""
    if sum(one.count for one in profile.copies) < 2:
        return ""
    time, alone = sum(one.time for one in profile.copies), copies_alone(profile)
    return "one after the other" if time <= 1.05 * alone else ""


def _rate(one: CopyTime) -> str:
    """``2.3 of 12 GB/s``."""
    return (
        f"{_two_digits(one.rate)} of {_two_digits(one.reach)} GB/s"
        if one.reach
        else f"{_two_digits(one.rate)} GB/s"
    )


def _could(one: CopyTime) -> str:
    rate = _two_digits(one.reach)
    if not one.reach:
        return "the bandwidth of this GPU's link is not known"
    if one.rate >= _NEAR * one.reach:
        return (
            f"that is the link's limit ({rate} GB/s): only fewer bytes, or overlapping copies with "
            "kernels, help"
        )
    if one.measured:
        return f"pinned copies in this profile reach {rate} GB/s"
    return (
        f"with pinned memory, about {rate} GB/s are usual for this GPU (its PCIe at full width; half of "
        "that on a machine one PCIe generation older)"
    )


def _two_digits(value: float) -> str:
    """Two digits: ``2.3``, ``12``, ``0.33``."""
    return f"{value:.2g}" if value < 99.5 else f"{value:.0f}"


def _copies(number: float) -> str:
    """``1 copy``, ``2.5 copies``."""
    return "1 copy" if number == 1 else f"{wording_number(round(number, 1))} copies"
