"""What the verdict says of how much of a step a CUDA graph could hold."""

from __future__ import annotations

import msgspec

from gapless.analyze.phrases.speed import time_range
from gapless.analyze.verdicts.changes import MAX_CHANGES
from gapless.model import Change, Report, Verdict
from gapless.model.readiness import Obstacle, Readiness, Stretch
from gapless.model.wording import count, duration, duration_range, percent

_CAPTURING = ('mode="reduce-overhead"', 'mode="max-autotune"', 'backend="cudagraphs"')
"""Options of torch.compile that use CUDA graphs."""


def with_readiness(verdict: Verdict, report: Report) -> Verdict:
    """Return `verdict` preceded by what a graph could hold, if that was analysed."""
    ready = report.readiness
    if ready is None:
        return verdict
    sentence = _sentence(ready)
    own = verdict.sentence[:1].lower() + verdict.sentence[1:]
    why = (*_compiler_graphs(report), *_why(ready), f"Apart from that: {own}", *verdict.why)
    priced = {(change.what, change.line) for change in verdict.do_first}
    changes = [_change(obstacle) for obstacle in ready.obstacles if not obstacle.input]
    changes = [change for change in changes if (change.what, change.line) not in priced]
    return msgspec.structs.replace(
        verdict,
        sentence=sentence,
        why=why,
        level="act" if ready.eager and ready.stretches else verdict.level,
        do_first=(*changes, *verdict.do_first)[:MAX_CHANGES],
    )


def _sentence(ready: Readiness) -> str:
    """Say how much of a step one CUDA graph could hold, and what it saves."""
    if ready.refused:
        return f"Cannot tell what a CUDA graph could hold: {ready.refused}"
    if not ready.eager:
        return f"CUDA graphs already launch the whole step ({count(ready.held, 'kernel')})"
    lead = (
        f"CUDA graphs already launch {percent(ready.held / ready.launches)} of a step" if ready.held else ""
    )
    if not ready.stretches:
        if lead:
            return f"{lead}, and nothing else in it can be captured as it is"
        return "Nothing in a step can be captured in a CUDA graph as it is"
    longest = ready.stretches[0]
    share = percent(longest.launches / ready.launches)
    where = f"{longest.launches} of {ready.launches} launches{_between(longest)}"
    begins = f"{lead}; another one" if lead else "A CUDA graph"
    more = f"{share} more" if lead else f"{share} of a step"
    return f"{begins} could hold {more} as it is ({where}): {_saves(longest, ready)}"


def _saves(longest: Stretch, ready: Readiness) -> str:
    """Say what replaying the longest stretch saves."""
    saved, step = longest.saved, ready.step
    if saved is None or step is None:
        return "what it saves was not estimated"
    if not saved.tells(step.likely):
        return f"a replay saves almost nothing of {duration(step.likely)}"
    reached = duration_range(saved.least, saved.most)
    return f"a replay saves {duration(saved.likely)} ({reached}) of {duration(step.likely)} per step"


def _between(part: Stretch) -> str:
    """Return the lines at which a stretch begins and ends."""
    if part.first is None:
        return ""
    if part.last is None or (part.last.file, part.last.line) == (part.first.file, part.first.line):
        return f", {part.first.short}"
    if part.last.file == part.first.file and part.last.line > part.first.line:
        return f", {part.first.short}–{part.last.line}"
    return f", {part.first.short} to {part.last.short}"


def _why(ready: Readiness) -> tuple[str, ...]:
    """Return the main obstacle, and what a graph of the whole step would save."""
    stops = [obstacle for obstacle in ready.obstacles if not obstacle.input and obstacle.steps >= ready.steps]
    reasons = []
    if stops:
        first = stops[0]
        at = f" at {first.line.short}" if first.line is not None else ""
        more = f", and {count(len(stops) - 1, 'more obstacle')}" if len(stops) > 1 else ""
        reasons.append(f"Main obstacle: {first.reason}{at}{more}")
    whole = ready.whole
    if stops and whole is not None and ready.step is not None and whole.tells(ready.step.likely):
        reasons.append(f"Without obstacles, one replay of the whole step saves {time_range(whole)}")
    return tuple(reasons)


def _compiler_graphs(report: Report) -> tuple[str, ...]:
    """Say what the compiler captures; here it runs eagerly and counts as launches."""
    names = [code.name for code in report.compiled if any(word in _CAPTURING for word in code.options)]
    if not names:
        return ()
    many = f"{names[0]} and {count(len(names) - 1, 'other')}" if len(names) > 1 else names[0]
    note = f"PyTorch already turns {many} into CUDA graphs; here the launches are counted as if it did not"
    return (note,)


def _change(obstacle: Obstacle) -> Change:
    """Return the change that removes an obstacle."""
    return Change(
        what=obstacle.change, line=obstacle.line, unit="", codes=(obstacle.code,) if obstacle.code else ()
    )
