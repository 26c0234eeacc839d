"""The verdict on a loader: whether it keeps up, and which setting to use."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Change, Verdict
from gapless.model.loading import Diagnosis
from gapless.model.verdict import Level
from gapless.model.wording import count, duration, percent
from gapless.rules import _loader as words

MIN_WAIT_SHARE = 0.05
"""Share of a step below which waiting is not mentioned: the measurement is no more exact."""


_STEP_SOURCES = {
    "given": "as given",
    "estimate": "estimated",
    "timed": "timed here",
    "profile": "from the profile",
    "session": "from the saved check",
}
"""Where the length of a step comes from."""


def verdict(diagnosis: Diagnosis) -> Verdict:
    """Return the verdict on a measured loader."""
    wrong = diagnosis.correctness.mistakes if diagnosis.correctness is not None else ()
    is_predicted = diagnosis.doubt is None and diagnosis.now is not None and diagnosis.advised is not None
    sentence, level = _sentence(diagnosis) if is_predicted else _no_prediction(diagnosis)
    if wrong:
        named = ", ".join(dict.fromkeys(f"{mistake.name} ({mistake.code})" for mistake in wrong))
        sentence, level = f"The loader does not yield what it should: {named}. {sentence}", "act"
    return Verdict(
        sentence=sentence,
        level=level,
        why=tuple(_why(diagnosis)),
        do_first=_changes(diagnosis) if is_predicted else (),
        confidence=_confidence(diagnosis) if is_predicted else "",
        per="per step" if diagnosis.demand.step else "per batch",
    )


def _no_prediction(diagnosis: Diagnosis) -> tuple[str, Level]:
    """Say why no times are predicted."""
    return diagnosis.sentence[:1].upper() + diagnosis.sentence[1:] or "Nothing could be predicted", "unknown"


def _sentence(diagnosis: Diagnosis) -> tuple[str, Level]:
    """Return the sentence and level for a loader whose times are predicted."""
    assert diagnosis.now is not None
    assert diagnosis.advised is not None
    before, after = diagnosis.step_now, diagnosis.step_advised
    setting = words.describe_setting(diagnosis.setting)
    if not diagnosis.demand.step:
        rate = f"{1e9 / before:.3g} batches per second" if before else "as many batches as can be measured"
        if not after or before <= after * (1 + MIN_WAIT_SHARE):
            return f"Nothing worth fixing: {setting} gives {rate}, within 5 % of the best here", "fine"
        return (
            f"The loader gives {rate}; with {words.recommended_arguments(diagnosis)} it gives "
            f"{1e9 / after:.3g}",
            "act",
        )
    wait = diagnosis.seen.wait if diagnosis.seen is not None else diagnosis.now.wait
    if wait <= 2 * MIN_WAIT_SHARE * before:
        return (
            f"Nothing worth fixing: {setting} keeps up with a step of {duration(diagnosis.demand.step)}",
            "fine",
        )
    lost = f"Your GPU would wait {percent(wait / before)} of each {duration(before)} step for data"
    left = diagnosis.seen_advised.wait if diagnosis.seen_advised is not None else diagnosis.advised.wait
    if before <= after * (1 + MIN_WAIT_SHARE):
        return f"{lost}, and no setting helps: make batches cheaper", "act"
    return (
        f"{lost}; with {words.recommended_arguments(diagnosis)}, {duration(left)} of it remains"
        if left > MIN_WAIT_SHARE * after
        else lost
    ), "act"


def _why(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the cost of a batch, the step without input, and reasons for doubt."""
    cost = words.describe_cost(diagnosis)
    if diagnosis.fetch.batches:
        where = words.describe_hottest_line(diagnosis)
        yield f"{cost[:1].upper()}{cost[1:]}" + (f"; {where}" if where else "")
    if diagnosis.demand.step:
        source = _STEP_SOURCES.get(diagnosis.demand.source, "")
        yield f"The step without its input takes {duration(diagnosis.demand.step)}{source and f' ({source})'}"
    if diagnosis.doubt is not None:
        yield from diagnosis.doubt.reasons[1:] if diagnosis.doubt.kind == "busy" else diagnosis.doubt.reasons


def _changes(diagnosis: Diagnosis) -> tuple[Change, ...]:
    """Return the recommended setting, if it makes steps shorter."""
    if diagnosis.advised is None or diagnosis.step_now <= diagnosis.step_advised * (1 + MIN_WAIT_SHARE):
        return ()
    place = "" if diagnosis.line is not None else "the DataLoader"
    edit, before, after = words.recommended_arguments(diagnosis), diagnosis.step_now, diagnosis.step_advised
    return (Change(what=edit, line=diagnosis.line, place=place, before=before, after=after),)


def _confidence(diagnosis: Diagnosis) -> str:
    """Say how long was measured, on how many cores, and whether the advice was run."""
    ran = "the advice was run" if diagnosis.seen_advised is not None else "the advice is predicted, not run"
    cores = count(diagnosis.machine.allowed, "core")
    return f"batches measured for {diagnosis.duration:.1f} s on {cores}; {ran}"
