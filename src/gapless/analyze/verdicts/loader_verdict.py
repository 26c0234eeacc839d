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


_CONDITIONS = {
    "whole": "if the dataset is indexed with whole batches",
    "tensors": "if its lists of numbers are made tensors",
}
"""The kinds of remedies, as conditions."""


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
    before, after, change = diagnosis.step_now, *_best_change(diagnosis)
    setting = words.describe_setting(diagnosis.setting)
    if not diagnosis.demand.step:
        rate = f"{1e9 / before:.3g} batches per second" if before else "as many batches as can be measured"
        if not after or before <= after * (1 + MIN_WAIT_SHARE):
            return f"Nothing worth fixing: {setting} gives {rate}, within 5 % of the best here", "fine"
        return (
            f"The loader gives {rate}; {change} it gives {1e9 / after:.3g}",
            "act",
        )
    wait = diagnosis.seen.wait if diagnosis.seen is not None else diagnosis.now.wait
    if wait <= 2 * MIN_WAIT_SHARE * before:
        return (
            f"Nothing worth fixing: {setting} keeps up with a step of {duration(diagnosis.demand.step)}",
            "fine",
        )
    lost = f"Your GPU would wait {percent(wait / before)} of each {duration(before)} step for data"
    left = _wait_left(diagnosis)
    if before <= after * (1 + MIN_WAIT_SHARE):
        return f"{lost}, and no setting helps: make batches cheaper", "act"
    return (
        f"{lost}; {change}, {duration(left)} of it remains" if left > MIN_WAIT_SHARE * after else lost
    ), "act"


def _best_change(diagnosis: Diagnosis) -> tuple[float, str]:
    """Return the step after the best change, and that change as a condition."""
    remedy = diagnosis.remedy
    if remedy is not None and remedy.advised is not None:
        return remedy.advised.step, _CONDITIONS[remedy.kind]
    return diagnosis.step_advised, f"with {words.advised_arguments(diagnosis)}"


def _wait_left(diagnosis: Diagnosis) -> float:
    """Return how long a step waits for its batch after the best change."""
    if diagnosis.remedy is not None and diagnosis.remedy.advised is not None:
        return diagnosis.remedy.advised.wait
    if diagnosis.seen_advised is not None:
        return diagnosis.seen_advised.wait
    return diagnosis.advised.wait if diagnosis.advised is not None else 0.0


def _why(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the cost of a batch, the step without input, and reasons for doubt."""
    cost = words.describe_cost(diagnosis)
    if diagnosis.fetch.batches:
        where = words.describe_hottest_line(diagnosis)
        yield f"{cost[:1].upper()}{cost[1:]}" + (f"; {where}" if where else "")
    if diagnosis.remedy is not None:
        said = "; ".join(words.describe_remedy(diagnosis, diagnosis.remedy))
        yield said[:1].upper() + said[1:]
    if diagnosis.demand.step:
        source = _STEP_SOURCES.get(diagnosis.demand.source, "")
        yield f"The step without its input takes {duration(diagnosis.demand.step)}{source and f' ({source})'}"
    if diagnosis.doubt is not None:
        yield from diagnosis.doubt.reasons[1:] if diagnosis.doubt.kind == "busy" else diagnosis.doubt.reasons


def _changes(diagnosis: Diagnosis) -> tuple[Change, ...]:
    """Return the remedy or the recommended setting, if it makes steps shorter."""
    after, _ = _best_change(diagnosis)
    if diagnosis.advised is None or diagnosis.step_now <= after * (1 + MIN_WAIT_SHARE):
        return ()
    place = "" if diagnosis.line is not None else "the DataLoader"
    remedy = diagnosis.remedy
    edit = words.advised_arguments(diagnosis) if remedy is None else words.remedy_change(diagnosis, remedy)
    return (Change(what=edit, line=diagnosis.line, place=place, before=diagnosis.step_now, after=after),)


def _confidence(diagnosis: Diagnosis) -> str:
    """Say how long was measured, on how many cores, and whether the advice was run."""
    if diagnosis.remedy is not None:
        ran = "the step with the advice is predicted from batches made that way"
    elif diagnosis.seen_advised is not None:
        ran = "the advice was run"
    else:
        ran = "the advice is predicted, not run"
    cores = count(diagnosis.machine.allowed, "core")
    return f"batches measured for {diagnosis.duration:.1f} s on {cores}; {ran}"
