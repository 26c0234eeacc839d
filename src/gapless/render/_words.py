"""How the report puts things: numbers, frequencies and endings in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gapless.model import Finding, Frequency, Report, SourceLine, StepSummary
from gapless.model.estimate import Estimate, Range
from gapless.model.profile import Asked, Price, Prices
from gapless.model.wording import count, duration, number, percent, rate, size

_WIDE, _NOTHING = 3.0, 1_000
"""A price whose range spans more than this factor is told as a bound; nanoseconds that are nothing."""

WHEN = {
    "every-step": "every step",
    "some-steps": "some steps",
    "no-steps": "whole run",
    "evaluation": "evaluation",
    "first-step": "first step",
    "set-up": "set-up",
    "after": "after",
}
PARTS = (
    ("kernel", "kernels"),
    ("communication", "communication"),
    ("memcpy", "copies"),
    ("memset", "memset"),
    ("runtime", "runtime calls"),
    ("loading", "data loading"),
    ("host", "host operators"),
    ("other", "other"),
)
"""Fields of a `Split`, and what they are called."""
CAUSES = {
    "wait": "host waits",
    "input": "no input",
    "launch": "launch-bound",
    "host": "host busy",
    "allocator": "allocator",
    "communication": "communication",
    "graph": "driver",
    "profiler": "profiler",
    "unknown": "unexplained",
}
"""What the GPU idles for."""
LIMITS = {
    "host": "the host's own work is the limit",
    "device": "the GPU's own work is the limit",
    "input": "the data loader is the limit",
    "peers": "the other ranks are the limit",
}
"""What remains once no wait does."""
_ASSUMED = {
    "pinned": "with copies to the GPU from pinned memory",
    "input": "with every batch there in time",
    "graphs": "with one launch for each step",
}


def without_waits(prices: Prices) -> str:
    """What the profile would take without all its waits, and what is the limit then."""
    less, limit = percent(prices.all / prices.span), LIMITS.get(prices.remains, prices.remains)
    return (
        f"Without all waits {duration(prices.span)} would be {duration(prices.span - prices.all)}, "
        f"{less} less; then {limit}."
    )


def assumed(one: Asked) -> str:
    """The beginning of an answer: ``Without GAP112 (8 waits), with every batch there in time``."""
    parts = [f"without {' and '.join(one.what)} ({count(one.waits, 'wait')})"] if one.what else []
    parts += [_ASSUMED.get(what, f"with {what.removeprefix('half:')} twice as fast") for what in one.assumed]
    told = ", ".join(parts)
    return told[:1].upper() + told[1:]


def often(frequency: Frequency, steady: int) -> str:
    """``every step, 2×``; `steady` is the number of steps that were looked at."""
    if not frequency.waits:  # nobody waits: a pattern of the memory
        return WHEN[frequency.when] if frequency.when != "no-steps" else ""
    times = f"{number(frequency.waits)}×"
    if frequency.when == "some-steps":
        if frequency.every:
            return f"every {frequency.every} steps, {times}"
        hit = round(frequency.per_step * steady / frequency.waits)
        return f"{hit} of {steady} steps, {times}"
    return f"{WHEN[frequency.when]}, {times}"


def meaning(steps: StepSummary) -> str:
    """What the number of waits says of a step, and what a step is."""
    waits = steps.waits_per_step
    times = "Once" if waits == 1 else f"{number(waits)} times"
    often = f"{times} in each step"
    if waits < 1:
        often = rate(waits, "time").replace("1 time every", "Once every")
    elif steps.least != steps.most:
        often = f"On average {often.lower()}"
    return (
        f"{often} the host launches nothing until the GPU has done all that was queued. "
        f"A step ends with {steps.source}."
    )


def operators(finding: Finding) -> str:
    """What waits: the Python call where it says more, the operators, and the node in backward."""
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


def places(lines: Sequence[SourceLine], name: Callable[[str], str]) -> str:
    """``a.py:3, 5, b.py:7``, each file named once; `name` says how."""
    numbers: dict[str, dict[int, None]] = {}
    for line in lines:
        numbers.setdefault(line.file, {})[line.line] = None
    return ", ".join(f"{name(file)}:{', '.join(map(str, sorted(of)))}" for file, of in numbers.items())


def price(one: Price, span: int) -> list[str]:
    """What removing the waits saves; `span` is what it is a part of, 0 where the replay is not trusted."""
    if not span:
        most = max(one.alone, one.last)
        return [f"at most {duration(most)}: the replay is not close enough to say more"]
    told = f"{duration(one.alone)} alone, {percent(one.alone / span)} of the trace"
    if one.last - one.alone >= 0.005 * span:
        told += f"; {duration(one.last)} once all other waits are gone, {percent(one.last / span)}"
    rows = [told]
    if one.kept:
        rows.append(f"{count(one.kept, 'more wait')} here cannot be priced")
    return rows


def estimated(one: Price, of: Estimate) -> str:
    """What removing the waits would save of a step on a GPU that is not there; a bound where no more is
    known."""
    if one.of:
        reach = f" ({duration(one.least_last)} to {duration(one.most_last)})"
        reach = "" if one.most_last - one.least_last < 0.01 * one.last else reach
        return f"est. {duration(one.last)}{reach} of a {duration(one.of)} step"
    if of.reasons or one.most_last > _WIDE * max(one.least_last, _NOTHING):
        if one.most_last <= _NOTHING:
            return f"est. nothing of a {span(of.step)} step"
        told = f"est. at most {duration(one.most_last)} of a {span(of.step)} step"
        return f"{told}, alone at most {duration(one.most_alone)}" if one.most_alone < one.most_last else told
    if one.last < 0.001 * of.step.likely:
        return f"est. next to nothing of a {duration(of.step.likely)} step"
    told = f"est. {duration(one.last)} of a {duration(of.step.likely)} step"
    if one.least_last != one.most_last:
        told += f" ({duration(one.least_last)} to {duration(one.most_last)})"
    if one.last - one.alone >= 0.005 * of.step.likely:
        told += f", alone {duration(one.alone)}"
    return told


def span(one: Range) -> str:
    """``35 to 55 ms``."""
    return duration(one.likely) if one.least == one.most else f"{duration(one.least)} to {duration(one.most)}"


def ending(report: Report) -> list[str]:
    """How the script ended, where that bears on what was seen."""
    how, status, message = report.ending.how, report.ending.status, report.ending.message
    who = "The cell" if report.script == ("the cell",) else "The script"
    if how == "enough-steps":
        evaluated = any(one.frequency.when == "evaluation" for one in report.findings)
        later = "what comes later" if evaluated else "what comes later, evaluation for one,"
        return [
            f"Stopped after {count(report.steps.seen, 'step')}: {later} was not seen "
            "(--steps all runs to the end)."
        ]
    if how == "exit" and status:
        return [f"The script left with status {status}."]
    if how == "interrupted":
        return ["The script was interrupted: this is what was seen until then."]
    if how == "error":
        return [f"{who} failed ({message}): this is what was seen until then."]
    if how == "not-emulated":
        return [f"The run ended early: {message}"]
    return []
