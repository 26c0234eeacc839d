"""Find contradictions in a report: a number that differs between two of its places.

`contradictions` reads a report as text, as JSON and as data, collects every number with its name, and
returns the names with two values and the sentences that a table refutes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from gapless.model import Report
from gapless.model.estimate import Estimate
from gapless.model.wording import binary_size, duration, number, percent, three_figures
from gapless.render import Style, renderer

WIDE = Style(width=4000, unfold=True, frames=True)
"""Nothing is folded, wrapped or cut, so that each statement stands in one line."""

_TIME = r"[\d.,]+ (?:[mµ]s|s)\b"
_SIZE = r"[\d.,]+ (?:[KMGT]iB|B)\b"
_PATTERNS = {
    "step": (
        rf"(?:estimated|real profile): (?:step|[a-z ]+?) ({_TIME})",
        rf"\(\w[\w ]* ≈ ({_TIME})\)",
        rf"at the sizes of this run +({_TIME})",
        rf"per step, of ({_TIME})",
    ),
    "step with its batches in time": (
        rf"; ({_TIME})(?: \([^)]*\))? if every batch were on time",
        rf"\(\w[\w ]* then ≈ ({_TIME})\)",
    ),
    "samples per second": (
        r"Speed[\w ]*: ([\d,.]+) \([^)]*\) samples/s",
        r"samples per second, [\d.]+ per [a-z ]+? +([\d,.]+) ",
    ),
    "tokens per second": (
        r"Speed[\w ]*: (?:.*?samples/s, )?([\d,.]+) \([^)]*\) tokens/s",
        r"tokens per second, [\d.]+ per [a-z ]+? +([\d,.]+) ",
    ),
    "share of the peak": (r"MFU (below [\d.]+ %|[\d.]+ %)", r"\(MFU\) +(below [\d.]+ %|[\d.]+ %)"),
    "GPU work in a step": (rf"GPU work in it +({_TIME})",),
    "CPU time to launch a step": (rf"CPU time to launch it +({_TIME})",),
    "limited by": (
        r"(?:certainly|Probably \(\d+ %\)) limited by (the \w+(?: loader)?|communication|copies)",
        r"limited by +(the \w+(?: loader)?|communication|copies)",
    ),
    "peak of reserved memory": (
        rf"Memory: peak ({_SIZE}) reserved",
        rf"of ({_SIZE}) at the peak of reserved memory",
    ),
    "steps of the whole run": (
        r"The whole (?:run|loop): (?:at most )?([\d,]+) ",
        r"the whole run: (?:at most )?([\d,]+) steps",
    ),
}
"""For each number the ways in which a report words it."""


@dataclass(frozen=True)
class Said:
    """A value that a document gives to what is called `name`, and the line (or the field) where it does."""

    name: str
    value: str
    where: str


def contradictions(report: Report) -> list[str]:
    """What `report` says twice, differently; nothing where it says one thing."""
    text = renderer("text")(report, WIDE)
    said = [*numbers_in(text), *held(report)]
    problems = []
    for name in dict.fromkeys(each.name for each in said):
        values: dict[str, str] = {}
        for each in said:
            if each.name == name:
                values.setdefault(each.value, each.where)
        if len(values) > 1:
            problems.append(
                f"{name}: " + " but ".join(f"{value} ({at[:110]})" for value, at in values.items())
            )
    return [*problems, *_denied(report), *_busy(report), *_idle(report, text), *_late(report)]


def numbers_in(text: str) -> Iterator[Said]:
    """The numbers that a report names in its text."""
    for line in text.splitlines():
        for name, patterns in _PATTERNS.items():
            for pattern in patterns:
                for match in re.finditer(pattern, line):
                    yield Said(name, match[1], line.strip())


def held(report: Report) -> Iterator[Said]:
    """The same numbers as the report's data has them."""
    estimate = report.estimate
    if estimate is not None and not estimate.refused:
        yield Said("step", duration(estimate.whole.likely), "estimate.whole")
        yield Said("GPU work in a step", duration(estimate.device), "estimate.device")
        yield Said("CPU time to launch a step", duration(estimate.host), "estimate.host")
        yield from _of_speed(report, estimate)
        yield from _in_json(report)
        for finding in report.offers:
            if finding.emulated and finding.step.likely:
                yield Said("step", duration(finding.whole.likely), f"offers[{finding.gpu}]")
        if estimate.waiting.likely:
            yield Said("step with its batches in time", duration(estimate.step.likely), "estimate.step")
        for finding in report.findings:
            if finding.price is not None and finding.price.of:
                yield Said("step", duration(finding.price.of), f"price.of of {finding.code}")
        for change in report.verdict.do_first[:1]:
            if change.unit == "ns":
                yield Said("step", duration(change.before), "do_first[0].before")
    if len(report.memory) == 1 and report.memory[0].lack is None and not report.memory[0].at_least:
        peak = report.memory[0].baseline.peak_reserved
        yield Said("peak of reserved memory", binary_size(peak), "memory.baseline")
    if report.planned.steps and estimate is not None and not estimate.refused:
        yield Said("steps of the whole run", f"{report.planned.steps:,}", "planned.steps")


def _of_speed(report: Report, estimate: Estimate) -> Iterator[Said]:
    done, step = estimate.throughput, estimate.whole.likely
    for name in ("samples", "tokens"):
        counted = getattr(done, name) if done is not None else None
        if counted is not None and step:
            yield Said(
                f"{name} per second",
                three_figures(counted.number * 1e9 / step),
                f"estimate.throughput.{name}",
            )


def _in_json(report: Report) -> Iterator[Said]:
    """The numbers that other programs read."""
    content = json.loads(renderer("json")(report, WIDE))
    estimate = content["estimate"]
    step = estimate["step"]["likely"] + estimate["waiting"]["likely"]
    yield Said("step", duration(step), "JSON: estimate.step and estimate.waiting")
    yield Said("GPU work in a step", duration(estimate["device"]), "JSON: estimate.device")
    first = next(iter(content["do_first"]), None)
    if first is not None and first["unit"] == "ns":
        yield Said("step", duration(first["before"]), "JSON: do_first[0].before")
    for each in content["offers"]:
        done, unit = each["throughput"], each["unit"]
        step = each["step"]["likely"] + each["waiting"]["likely"]
        if each["emulated"] and done is not None and unit and step:
            yield Said(f"{unit} per second", three_figures(done[unit]["number"] * 1e9 / step), "JSON: offers")


_ROUNDING = 0.6
"""Percent by which a share may differ from the same one with other digits."""


def _busy(report: Report) -> Iterator[str]:
    """What an estimated step's limit, and the idleness in it, say against the GPU's work in it."""
    estimate = report.estimate
    if estimate is None or estimate.refused or not estimate.whole.likely:
        return
    work = 100 * estimate.device / estimate.whole.likely
    if work > 100 + _ROUNDING:
        yield f"the GPU works for {work:.0f} % of a step"
    if estimate.clear and estimate.limiter == "device" and work < 50:
        yield f"limited by the GPU, which works for {work:.0f} % of a step"
    if estimate.clear and estimate.limiter in ("host", "input") and work > 98:
        yield f"limited by the {estimate.limiter}, but the GPU works for {work:.0f} % of a step"
    idle = re.search(r"GPU would idle for ([\d.]+) % of each", report.verdict.sentence)
    least = idle is not None and "up to" not in report.verdict.sentence
    if idle is not None and least and float(idle[1]) + work > 100 + 2 * _ROUNDING:
        yield f"{idle[0]!r}, but the GPU works for {work:.0f} % of it"


_IDLE = (r"GPU(?: of [^()]+\([^()]+\))? idles ([\d.]+) % of (?:each|the)", r"GPU idle ([\d.]+) %[:,]")
_WORKS = (r"GPU(?: of [^()]+\([^()]+\))? is busy ([\d.]+) % of (?:each|the)",)


def _idle(report: Report, text: str) -> Iterator[str]:
    """What a profile's report says of how much the GPU idles, or works."""
    profile = report.profile
    if profile is None or not profile.steps.total or not profile.coverage.complete:
        return
    idle = 100 * profile.idle / profile.steps.total
    words = [(float(match[1]), match[0]) for pattern in _IDLE for match in re.finditer(pattern, text)]
    words += [(100 - float(match[1]), match[0]) for pattern in _WORKS for match in re.finditer(pattern, text)]
    words += [
        (100 * rank.idle / rank.step, f"ranks[{rank.rank}].idle")
        for rank in report.ranks
        if rank.path == profile.path and rank.rank == profile.rank and rank.step and not rank.incomplete
    ]
    for share, where in words:
        if abs(share - idle) > _ROUNDING:
            yield f"the GPU idles {idle:.1f} % of a step, but {share:.1f} % ({where!r})"


def _late(report: Report) -> Iterator[str]:
    """What the verdict, the table of ranks and the finding say of the rank that the others wait for."""
    profile, late = report.profile, {rank.rank: rank.late for rank in report.ranks}
    who = re.search(r"GPU of rank (\d+) \(of (\d+)", report.verdict.sentence)
    if who is not None and (profile is None or (int(who[1]), int(who[2])) != (profile.rank, len(late))):
        yield f"{who[0]!r}, but the profile is another rank's, or there are {len(late)}"
    for finding in report.findings:
        for evidence in finding.evidence:
            match = re.search(
                rf"rank (\d+) arrives last: .*? ({_TIME}) of (?:each ({_TIME})|the one) step for it, "
                r"([\d.]+) %",
                evidence,
            )
            if match is None:
                continue
            if profile is not None and int(match[1]) != profile.rank:
                yield f"rank {match[1]} arrives last, but the verdict is about rank {profile.rank}"
            if late and _nanoseconds(match[2]) > 1.01 * late.get(int(match[1]), 0):
                yield f"{evidence!r}, but in the table it is {duration(late.get(int(match[1]), 0))} late"
            if (
                match[3]
                and abs(100 * _nanoseconds(match[2]) / _nanoseconds(match[3]) - float(match[4])) > 1.5
            ):
                yield f"{evidence!r} is another share of the step"


def _nanoseconds(time: str) -> float:
    amount, _, unit = time.replace(",", "").rpartition(" ")
    return float(amount) * {"s": 1e9, "ms": 1e6, "µs": 1e3}[unit]


def _denied(report: Report) -> Iterator[str]:
    """Sentences of the verdict that something below them denies."""
    sentence, steps = report.verdict.sentence, report.steps
    # What recurs and is no sync: a rank that is late to a collective, in a profile.
    syncs = [finding for finding in report.findings if not finding.code.startswith("GAP6")]
    waiting = [finding for finding in syncs if finding.frequency.in_steps and finding.frequency.per_step]
    per_step = sum(finding.frequency.per_step for finding in waiting)
    if steps.seen and abs(per_step - steps.waits_per_step) > 1e-6:
        yield f"syncs per step: {number(steps.waits_per_step)} in all but {number(per_step)} in the findings"
    if "no syncs in" in sentence.lower() and waiting and report.kind == "session":
        yield f"{sentence!r}, but {waiting[0].code} waits in steps"
    if "Nothing worth fixing" in sentence:
        yield from _worth_fixing(report)
    every = re.search(r"(\d+) syncs? (?:in|for) every (?!\d)", sentence)
    if every is not None and not steps.least <= int(every[1]) <= steps.most:
        yield f"{every[0]!r}, but steps have {steps.least} to {steps.most}"
    idle = re.search(
        r"idle for (\d+) % of each [\w ]+: (\d+) % waiting for data, (?:up to )?([\d.]+) % in", sentence
    )
    if idle is not None and abs(int(idle[1]) - min(int(idle[2]) + float(idle[3]), 100)) > 1.6:
        yield f"{idle[0]!r} does not add up"
    yield from _fits(report)
    yield from _changes(report)


def _worth_fixing(report: Report) -> Iterator[str]:
    if report.verdict.do_first:
        yield f"nothing is worth fixing, but {report.verdict.do_first[0].what!r} comes first"
    for finding in report.findings:
        share = _share(report, finding.price.last if finding.price is not None else 0)
        if finding.is_fault or share > 0.01:
            yield f"nothing is worth fixing, but {finding.code} saves {percent(share)}"


def _share(report: Report, saved: int) -> float:
    estimate = report.estimate
    return saved / estimate.whole.likely if estimate is not None and estimate.whole.likely else 0.0


def _fits(report: Report) -> Iterator[str]:
    sentence = report.verdict.sentence
    lacks = any(offer.lack is not None for offer in report.memory)
    own = [offer for offer in report.offers if offer.emulated and offer.fits is not None]
    if re.match(r"(Fits|It fits)\b.*before its first step", sentence):
        yield f"{sentence!r}, but what its steps need was not seen"
    if lacks and sentence.startswith("Fits"):
        yield f"{sentence!r}, but it needs more than there is"
    if report.memory and not lacks and "oes not fit:" in sentence:
        yield f"{sentence!r}, but nothing is lacking"
    for offer in own:
        if offer.fits == lacks:
            yield f"{offer.gpu}: the table says {'fits' if offer.fits else 'does not fit'}, memory does not"


def _changes(report: Report) -> Iterator[str]:
    """Each change begins where the one before has ended, and is about findings that are there."""
    before = -1.0
    unit = ""
    for offer in report.verdict.do_first:
        if offer.unit == unit and before >= 0 and offer.before >= 0 and abs(offer.before - before) > 1:
            yield f"{offer.what!r} begins with {number(offer.before)}, the last ends with {number(before)}"
        if offer.after > offer.before >= 0:
            yield f"{offer.what!r} makes it worse"
        if any(position >= len(report.findings) for position in offer.findings):
            yield f"{offer.what!r} mends a finding that is not there"
        before, unit = offer.after, offer.unit
