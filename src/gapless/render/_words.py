"""Phrase what a report says: numbers, frequencies, prices and places."""

from __future__ import annotations

from collections.abc import Callable

from gapless.model import Finding, Frequency, Profile, Report, Stack
from gapless.model.estimate import Estimate, Range
from gapless.model.loading import Diagnosis
from gapless.model.memory_report import MemoryReport
from gapless.model.profile import Price
from gapless.model.wording import (
    count,
    describe_phase,
    duration,
    duration_range,
    number,
    percent,
    rename_steps,
    size,
)

_NEGLIGIBLE_NS = 1_000
"""Savings up to this many nanoseconds per step are not worth a word."""
_MIN_SHARE_TO_STAND_OUT = 0.05
"""Share of the steps that the GPU idles for a finding: ten times what lists a finding in full."""
_CALLS_SHOWN = 3
"""Calls shown of each way to a line; more where these are the same for all ways."""
_REFUSED, _DRAWN = "capture-refused", "generator-shared-by-threads"
ShowPath = Callable[[str], str]
"""Turns a file's path into the one that is shown."""


def times(waits: float) -> str:
    """Return ``8×``."""
    return f"{number(waits)}×"


def often(frequency: Frequency, steady: int) -> str:
    """Return ``8× in every step``, ``once every 10 steps``; `steady` is the number of measured steps."""
    waits, when = frequency.waits, frequency.when
    if not waits:  # no sync: a pattern of the memory, or of a loader
        if when == "some-steps" and frequency.every:
            return f"every {frequency.every} steps"
        return describe_phase(when) if when != "no-steps" else ""
    frequency_text = "once" if waits == 1 else times(waits)
    if when == "some-steps":
        if frequency.every:
            return f"{frequency_text} every {frequency.every} steps"
        hit = round(frequency.per_step * steady / waits)
        return f"{frequency_text} in {hit} of {steady} steps"
    return f"{frequency_text} {describe_phase(when, frequency.phase, frequency.times, frequency.apart)}"


def stands_out(finding: Finding) -> bool:
    """Whether a finding is highlighted: it recurs in steps, or the GPU idles for it."""
    if finding.is_fault:
        return True
    return (
        finding.loss.share >= _MIN_SHARE_TO_STAND_OUT
        if finding.loss is not None
        else finding.frequency.per_step > 0
    )


def weight(finding: Finding, report: Report) -> str:
    """Return what a finding costs: the GPU's idle time, or how often it happens."""
    loss = finding.loss
    if finding.is_race:
        return "different numbers in each run" if finding.name == _DRAWN else "wrong numbers possible"
    if finding.is_graph:
        return "CUDA refuses it" if finding.name == _REFUSED else "wrong numbers"
    if loss is None:
        return rename_steps(often(finding.frequency, report.steps.steady), report.steps.noun)
    if not (loss.idle or loss.blocked):
        return ""
    if loss.unknown:
        return "cost unknown"
    if loss.share < 0.0005:
        return "GPU idles under 0.1 %"
    steps = _steps(report)
    each = "" if steps < 2 else " per step"
    return f"GPU idles {percent(loss.share)}, {duration(loss.idle / steps)}{each}"


def _steps(report: Report) -> int:
    """Return the number of steps that a finding's loss covers, at least 1."""
    if report.profile is not None:
        return max(report.profile.steps.count, 1)
    return max(report.comparison.after.steps, 1) if report.comparison is not None else 1


def saving(finding: Finding, report: Report) -> list[str]:
    """Return what fixing the finding saves, and under which condition; empty if it has no price."""
    price, estimate, profile = finding.price, report.estimate, report.profile
    if price is None:
        return []
    if price.of and price.most_last <= _NEGLIGIBLE_NS:
        return []
    if price.estimated:
        amounts = [_estimate_saving(price, estimate)] if estimate is not None or price.of else []
        return [rename_steps(each, report.steps.noun) for each in amounts]
    prices = profile.prices if profile is not None else None
    if not price.waits or profile is None or prices is None:
        return []
    return _replay_saving(price, 0 if prices.reasons else prices.span, max(profile.steps.count, 1))


def _replay_saving(price: Price, span: int, steps: int) -> list[str]:
    """Phrase a saving from the replay of a trace `span` ns long (0: not trusted) with `steps` steps."""
    per = " per step" if steps > 1 else ""
    if not span:
        return [
            f"up to {duration(max(price.alone, price.last) / steps)}{per}; the replay is not accurate "
            "enough to say more"
        ]
    row = f"{duration(price.alone / steps)}{per} if you fix only this"
    if price.last - price.alone >= 0.005 * span:
        row += f", {duration(price.last / steps)} once the other syncs are fixed"
    row += f" ({percent(max(price.alone, price.last) / span)} of the trace)"
    rows = [row]
    if price.kept:
        rows.append(f"{count(price.kept, 'more sync')} here cannot be priced")
    return rows


def _estimate_saving(price: Price, of: Estimate | None) -> str:
    """Phrase the saving per step on an emulated GPU: an amount, or an upper limit if no more is known."""
    if price.of:
        amount = duration(price.last)
        text = f"up to {amount}" if price.at_most else f"{amount}{_interval(price)}"
        return f"{text} per step, of {duration(price.of)}"
    if of is None:
        return f"up to {duration(price.most_last)} per step"
    step = f"(step ≈ {duration(of.whole.likely)})"
    if of.overlapped:  # a shorter step would wait longer
        step = f"once batches come in time (step then ≈ {duration(of.step.likely)})"
    if of.reasons:
        return f"{_upper_limit(price)} {step}"
    if price.most_last < 0.001 * of.whole.likely:
        return f"next to nothing {step}"
    saved = Range(price.least_last, price.last, price.most_last)
    if not saved.tells(of.whole.likely):
        most = f"{duration(saved.most)} per step"
        small = saved.small(of.whole.likely)
        return f"too small to tell, at most {most} {step}" if small else f"up to {most}, or nothing {step}"
    last = f"{duration(price.last)}{_interval(price)}"
    if price.last - price.alone < 0.005 * of.whole.likely:
        return f"{last} per step{_what_goes(price)} {step}"
    return (
        f"{duration(price.alone)} per step if you fix only this, {last} once the other syncs are fixed"
        f"{_what_goes(price)} {step}"
    )


def _what_goes(price: Price) -> str:
    """Say whether an estimated price is that of the fix, whose launches go with the syncs, or of these."""
    if not price.launches:
        return ", the syncs alone"
    return f", with {number(price.launches)} launch{'' if price.launches == 1 else 'es'}"


def _upper_limit(price: Price) -> str:
    """Phrase a price of which only the upper limit is known."""
    if price.most_last <= _NEGLIGIBLE_NS:
        return "next to nothing"
    if price.most_alone < price.most_last:
        return (
            f"up to {duration(price.most_alone)} per step if you fix only this, up to "
            f"{duration(price.most_last)} once the other syncs are fixed"
        )
    return f"up to {duration(price.most_last)} per step"


def _interval(price: Price) -> str:
    """Return the price's range in brackets; "" if it is narrower than 1 %."""
    if price.most_last - price.least_last < 0.01 * price.last:
        return ""
    return f" ({duration_range(price.least_last, price.most_last)})"


def operators(finding: Finding) -> str:
    """Return what waits: the Python calls if recorded, the operators, and the node in backward."""
    calls = list(dict.fromkeys(site.call for site in finding.sites if site.call))
    names = ", ".join(finding.operators)
    text = f"{', '.join(calls)} ({names})" if calls else names
    details = list(dict.fromkeys(site.detail for site in finding.sites if site.detail))
    if details:
        text += f", {' and '.join(details)}"
    if finding.node:
        text += f", in {finding.node}"
    if finding.bytes:
        text += f", {size(finding.bytes)} in all"
    return text


def callers(finding: Finding, path: ShowPath) -> list[str]:
    """Return ``4× from train.py:51 main, train.py:80`` for each way to the finding's line, if several.

    Calls are innermost first, as many as it takes to distinguish the ways.
    """
    stacks = [each.stack for each in finding.callers]
    deepest = max(map(len, stacks), default=0)
    depth = next(
        (n for n in range(_CALLS_SHOWN, deepest) if len({own[:n] for own in stacks}) == len(stacks)), deepest
    )
    lines = [f"{times(each.waits)} from {_chain(each.stack[:depth], path)}" for each in finding.callers]
    return lines if len(lines) > 1 else []


def _chain(calls: Stack, path: ShowPath) -> str:
    return ", ".join(
        f"{path(line.file)}:{line.line} {line.function}".removesuffix(" <module>") for line in calls
    )


def about(report: Report, path: ShowPath) -> str:
    """Return what the report is about, in one line."""
    if report.profile is not None:
        parts = _about_profile(report.profile, path)
    elif report.loader is not None:
        parts = _about_loader(report.loader)
    elif report.kind == "memory":
        parts = [
            part
            for memory_report in report.memory
            for part in _about_memory(memory_report, report.steps.noun, path)
        ]
    else:
        parts = _about_run(report, path)
    return " · ".join(part for part in parts if part)


def _about_profile(profile: Profile, path: ShowPath) -> list[str]:
    parts = []
    if profile.rank >= 0:
        parts.append(f"rank {profile.rank}" + (f" of {profile.world_size}" if profile.world_size else ""))
    parts += [f"one of {profile.devices} GPUs"] if profile.devices > 1 else []
    return [*parts, path(profile.path)]


def _about_loader(diagnosis: Diagnosis) -> list[str]:
    parts, around = [diagnosis.dataset], diagnosis.around
    if around is None or not around.foreign:
        parts.append("iterable" if diagnosis.iterable else "map-style")
    if around is not None and not around.foreign:
        parts.append(f"in a DataLoader in {around.name}")
    parts.append(f"{diagnosis.length} batches per epoch" if diagnosis.length >= 0 else "unknown length")
    if diagnosis.fetch.inside:
        parts.append(f"{diagnosis.fetch.inside} items per batch, made by the dataset")
    elif diagnosis.fetch.batch_size:
        parts.append(f"{diagnosis.fetch.batch_size:.4g} items per batch")
    return parts


def _about_memory(report: MemoryReport, noun: str, path: ShowPath) -> list[str]:
    parts = [count(report.allocations, "allocation")]
    parts += [rename_steps(count(report.steps, "step"), noun)] if report.steps else []
    parts += [duration(report.span)] if report.span >= 0 else []
    parts += [f"GPU {report.device}", report.settings or "default settings"]
    return [*parts, path(report.path)] if report.path else parts


def _about_run(report: Report, path: ShowPath) -> list[str]:
    script, environment = report.script, report.environment
    name = script[1] if script[:1] == ("-m",) and len(script) > 1 else "".join(script[:1])
    parts = [path(name)]
    if environment.device:
        parts.append(("emulated " if environment.emulated else "") + environment.device)
    if report.steps.seen:
        steady = rename_steps(count(report.steps.steady, "steady step"), report.steps.noun)
        loops = len(report.steps.side_by_side)
        where = f" in {loops} training loops side by side" if loops else ""
        parts.append(f"{steady}{where}, each ending with {report.steps.source}")
    return parts
