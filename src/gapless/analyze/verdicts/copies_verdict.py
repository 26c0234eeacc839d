"""The verdict on a profile that spends most of its time on copies between host and device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gapless.analyze.phrases.copy_share import MIN_CAUSE_SHARE, copy_only_time
from gapless.model import Change, Finding, Profile
from gapless.model.copies import STAGED, Memory
from gapless.model.profile import CopyTime
from gapless.model.wording import duration, percent, size
from gapless.model.wording import number as wording_number

_MIN_SHARE_OF_KIND = 0.2
"""Share of all copying time from which a kind of copies is named."""
_NEAR_LIMIT = 0.85
"""Share of the link's rate from which pinning and order make no difference."""
_MEMORY: dict[Memory, str] = {
    "pageable": "pageable",
    "pinned": "pinned",
    "managed": "managed memory",
    "unknown": "",
}
"""Words for the host memory of copies."""
_PIN = {
    True: "pin it and copy with `non_blocking=True`",
    False: "copy to the CPU into pinned memory, allocated once",
}
"""What to do about pageable copies: to the GPU (true), and to the CPU."""


def sentence(profile: Profile, period: str, rank_words: str = "") -> str:
    """Return the headline: the share of `period` spent copying, what is copied and how fast.

    `rank_words` names the rank, if there are several.
    """
    alone, kinds = copy_only_time(profile), _main_kinds(profile)
    share = f"{percent(alone / profile.steps.total)} of {period}{rank_words}"
    order = _order(profile)
    if len(kinds) == 1:
        (kind,) = kinds
        way = "to the GPU" if kind.to_device else "to the CPU"
        details = ", ".join(part for part in (share, _MEMORY[kind.memory], order) if part)
        text = f"Copies {way} take {details}: {_rate(kind)}"
    else:
        details = "; ".join(
            f"to the {'GPU' if kind.to_device else 'CPU'} {_MEMORY[kind.memory]}".rstrip()
            + f", {_rate(kind)}"
            for kind in kinds
        )
        text = f"Copies take {', '.join(part for part in (share, order) if part)}: {details}"
    idle = profile.idle / profile.steps.total
    return f"{text}; the GPU idles another {percent(idle)}" if idle >= 0.05 else text


def why(profile: Profile) -> Iterator[str]:
    """Yield what was copied and what the link can do."""
    per = max(profile.steps.count, 1)
    each = " per step" if per > 1 else ""
    for kind in _main_kinds(profile):
        side = "from" if kind.to_device else "to"
        memory = (
            f" {side} {_MEMORY[kind.memory].removesuffix(' memory')} memory" if _MEMORY[kind.memory] else ""
        )
        text = (
            f"To the {'GPU' if kind.to_device else 'CPU'}: {size(round(kind.bytes / per))} in "
            f"{_copies(kind.count / per)}{memory} {'take' if kind.count > per else 'takes'} "
            f"{duration(kind.time / per)}{each}"
        )
        yield f"{text}; {_reachable(kind)}"


def is_actionable(profile: Profile, findings: Sequence[Finding]) -> bool:
    """Whether these copies can be made faster, not just fewer."""
    beside = overlap_saving(profile, profile.steps.mean) >= MIN_CAUSE_SHARE * profile.steps.mean
    return any(map(_is_slow, _main_kinds(profile))) or (
        beside and any(finding.code == "GAP302" for finding in findings)
    )


def pinning_changes(profile: Profile, findings: Sequence[Finding]) -> tuple[Change, ...]:
    """Return the changes to pinned memory that make copies faster, with the step before and after."""
    per, before = max(profile.steps.count, 1), profile.steps.mean
    results = []
    for to_device, saved in _pinning_savings(profile).items():
        if saved / per < 0.01 * before:
            continue
        wanted = "h2d" if to_device else "d2h"
        at = [
            number
            for number, finding in enumerate(findings)
            if any(site.mechanism == wanted and site.detail == "pageable" for site in finding.sites)
            and finding.bytes > STAGED
        ]
        at.sort(key=lambda number: -findings[number].bytes)
        after = max(before - saved / per, 0.0)
        results.append(_change(_PIN[to_device], findings, at, before, after))
        before = after
    return tuple(results)


def _change(edit: str, findings: Sequence[Finding], at: Sequence[int], before: float, after: float) -> Change:
    """Return the change that mends the findings `at`, which begin with the one of most bytes."""
    first = findings[at[0]] if at else None
    line = first.line if first is not None else None
    lines = {spot.line for number in at for spot in findings[number].lines if line and spot.file == line.file}
    return Change(
        what=edit,
        line=line,
        lines=tuple(sorted(lines)),
        place=first.place if first is not None else "",
        before=before,
        after=after,
        bound=True,
        codes=tuple(dict.fromkeys(findings[number].code for number in at)),
        findings=tuple(sorted(at)),
    )


def overlap_saving(profile: Profile, left: float) -> float:
    """Return how much copying beside kernels saves at most of a step of `left` nanoseconds."""
    per = max(profile.steps.count, 1)
    kernels = profile.split.kernel / per
    return min(max(left - kernels - profile.idle / per, 0.0), kernels)


def _pinning_savings(profile: Profile) -> dict[bool, float]:
    """Return what pinning saves per direction in all steps: by the replay, else by the rates."""
    prices = profile.prices
    if prices is not None and not prices.refused and prices.span:
        return {True: prices.pinned_to_device, False: prices.pinned - prices.pinned_to_device}
    saved = {True: 0.0, False: 0.0}
    for kind in profile.copies:
        if kind.memory == "pageable" and kind.rate < kind.reach:
            saved[kind.to_device] += kind.alone * (1 - kind.rate / kind.reach)
    return saved


def _main_kinds(profile: Profile) -> list[CopyTime]:
    """Return the kinds of copies that take most of the copying time."""
    kinds = [kind for kind in profile.copies if kind.alone >= _MIN_SHARE_OF_KIND * copy_only_time(profile)]
    return sorted(kinds, key=lambda kind: -kind.alone)


def _is_slow(kind: CopyTime) -> bool:
    """Whether pinning may speed up these copies; for AMD the kind of memory is unknown."""
    return kind.memory != "pinned" and (not kind.reach or kind.rate < _NEAR_LIMIT * kind.reach)


def _order(profile: Profile) -> str:
    """Say whether copies run one after the other, without overlap."""
    if sum(kind.count for kind in profile.copies) < 2:
        return ""
    time, alone = sum(kind.time for kind in profile.copies), copy_only_time(profile)
    return "one after the other" if time <= 1.05 * alone else ""


def _rate(kind: CopyTime) -> str:
    """Return ``2.3 of 12 GB/s``."""
    return (
        f"{_two_digits(kind.rate)} of {_two_digits(kind.reach)} GB/s"
        if kind.reach
        else f"{_two_digits(kind.rate)} GB/s"
    )


def _reachable(kind: CopyTime) -> str:
    """Say what rate these copies could reach."""
    rate = _two_digits(kind.reach)
    if not kind.reach:
        return "the bandwidth of this GPU's link is not known"
    if kind.rate >= _NEAR_LIMIT * kind.reach:
        return (
            f"that is the link's limit ({rate} GB/s): only fewer bytes, or overlapping copies with "
            "kernels, help"
        )
    if kind.measured:
        return f"pinned copies in this profile reach {rate} GB/s"
    return (
        f"with pinned memory, about {rate} GB/s are usual for this GPU (its PCIe at full width; half of "
        "that on a machine one PCIe generation older)"
    )


def _two_digits(value: float) -> str:
    """Return ``2.3``, ``12`` or ``0.33``."""
    return f"{value:.2g}" if value < 99.5 else f"{value:.0f}"


def _copies(number: float) -> str:
    """Return ``1 copy`` or ``2.5 copies``."""
    return "1 copy" if number == 1 else f"{wording_number(round(number, 1))} copies"
