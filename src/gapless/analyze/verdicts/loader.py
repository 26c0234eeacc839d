"""The verdict on a loader: whether it keeps up, and which setting to take."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Change, Verdict
from gapless.model.loading import Diagnosis
from gapless.model.verdict import Level
from gapless.model.wording import count, duration, percent
from gapless.rules import _loader as words

SHARE = 0.05
"""A wait that is less of a step is none to speak of."""


_KNOWN = {
    "given": "as given",
    "estimate": "estimated",
    "timed": "timed here",
    "profile": "from the profile",
    "session": "from the saved check",
}
"""Where the length of a step is known from."""


def verdict(made: Diagnosis) -> Verdict:
    """The first lines of what was measured of a loader."""
    wrong = made.correctness.mistakes if made.correctness is not None else ()
    told = made.doubt is None and made.now is not None and made.advised is not None
    sentence, level = _sentence(made) if told else _withheld(made)
    if wrong:
        named = ", ".join(dict.fromkeys(f"{one.name} ({one.code})" for one in wrong))
        sentence, level = f"The loader does not yield what it should: {named}. {sentence}", "act"
    return Verdict(
        sentence=sentence,
        level=level,
        why=tuple(_why(made)),
        do_first=_changes(made) if told else (),
        confidence=_confidence(made) if told else "",
        per="per step" if made.demand.step else "per batch",
    )


def _withheld(made: Diagnosis) -> tuple[str, Level]:
    """Why nothing is said of times."""
    return made.sentence[:1].upper() + made.sentence[1:] or "Nothing could be predicted", "unknown"


def _sentence(made: Diagnosis) -> tuple[str, Level]:
    assert made.now is not None
    assert made.advised is not None
    before, after = made.step_now, made.step_advised
    setting = words.setting(made.setting)
    if not made.demand.step:
        rate = f"{1e9 / before:.3g} batches per second" if before else "as many batches as can be measured"
        if before <= after * (1 + SHARE):
            return f"Nothing worth fixing: {setting} gives {rate}, within 5 % of the best here", "fine"
        return f"The loader gives {rate}; with {words.arguments(made)} it gives {1e9 / after:.3g}", "act"
    wait = made.seen.wait if made.seen is not None else made.now.wait
    if wait <= 2 * SHARE * before:
        return f"Nothing worth fixing: {setting} keeps up with a step of {duration(made.demand.step)}", "fine"
    lost = f"Your GPU would wait {percent(wait / before)} of each {duration(before)} step for data"
    left = made.seen_advised.wait if made.seen_advised is not None else made.advised.wait
    if before <= after * (1 + SHARE):
        return f"{lost}, and no setting helps: make batches cheaper", "act"
    return (
        f"{lost}; with {words.arguments(made)}, {duration(left)} of it remains"
        if left > SHARE * after
        else lost
    ), "act"


def _why(made: Diagnosis) -> Iterator[str]:
    told = words.cost(made)
    if made.fetch.batches:
        where = words.hottest(made)
        yield f"{told[:1].upper()}{told[1:]}" + (f"; {where}" if where else "")
    if made.demand.step:
        known = _KNOWN.get(made.demand.source, "")
        yield f"The step without its input takes {duration(made.demand.step)}{known and f' ({known})'}"
    if made.doubt is not None:
        yield from made.doubt.reasons[1:] if made.doubt.kind == "busy" else made.doubt.reasons


def _changes(made: Diagnosis) -> tuple[Change, ...]:
    if made.advised is None or made.step_now <= made.step_advised * (1 + SHARE):
        return ()
    place = "" if made.line is not None else "the DataLoader"
    what, before, after = words.arguments(made), made.step_now, made.step_advised
    return (Change(what=what, line=made.line, place=place, before=before, after=after),)


def _confidence(made: Diagnosis) -> str:
    ran = "advice verified by running it" if made.seen_advised is not None else "predicted, not run"
    return f"{count(made.machine.allowed, 'core')}, measured for {made.duration:.1f} s; {ran}"
