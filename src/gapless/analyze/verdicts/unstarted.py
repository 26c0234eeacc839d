"""The verdict on a run that ended before its first step: why, and what was seen until then."""

from __future__ import annotations

import re

from gapless.analyze.verdicts.unseen import script_name, unseen_notes
from gapless.model import Report, Verdict
from gapless.model.wording import count

_HOW_STEPS_END = (
    "Gapless recognizes steps by optimizer steps, `profiler.step()` or `gapless.step()`, and in inference by "
    "a loop that runs a model or, without modules, syncs; if an iteration has none of these, call "
    "`gapless.step()` at its end"
)


_HOW_TO_RUN = (
    'Call the training at its end, or under `if __name__ == "__main__":`, or run the file that calls it; '
    "`gapless loader FILE:FUNCTION` takes a function that makes a loader"
)


def verdict(report: Report) -> Verdict:
    """Return the verdict if no step was seen; the caller fills `do_first`."""
    name, unseen = script_name(report.script), tuple(unseen_notes(report))
    end = ending_words(report)
    if report.environment.unused:
        if not end and report.ending.how == "finished" and report.ending.message:
            sentence = f"{name} ran nothing on the GPU: {report.ending.message}"
            return Verdict(sentence=sentence, why=(_HOW_TO_RUN,), not_seen=unseen)
        if not end:
            sentence = f"{name} put nothing on the GPU: it ran on the CPU, so there was nothing to wait for"
            return Verdict(sentence=sentence, not_seen=unseen)
        # What an interrupted run's child processes recorded may be lost.
        until = "a use of the GPU was recorded" if report.ending.how == "interrupted" else "it used the GPU"
        return Verdict(sentence=f"{name} {end[0]} before {until}{end[1]}", not_seen=unseen)
    total = sum(finding.frequency.total for finding in report.findings)
    if end:
        why = (f"{count(total, 'sync')} until then",) if total else ()
        sentence = f"{name} {end[0]} before its first step{end[1]}"
        return Verdict(sentence=sentence, why=why, not_seen=unseen)
    syncs = f"{count(total, 'sync')} in {name}" if total else f"No syncs in {name}"
    return Verdict(sentence=f"{syncs}, but no training step was seen", why=(_HOW_STEPS_END,), not_seen=unseen)


_OF_LAUNCHERS = r"(?:LOCAL_RANK|RANK|LOCAL_WORLD_SIZE|WORLD_SIZE|GROUP_RANK|MASTER_ADDR|MASTER_PORT)"
_MISSING = re.compile(
    rf"KeyError: ['\"]{_OF_LAUNCHERS}['\"]|environment variable {_OF_LAUNCHERS} expected, but not set"
)
"""How a script fails that expects to be started by torchrun."""


def _needs_launcher(report: Report) -> bool:
    """Whether the run failed because a launcher's environment variables are missing."""
    alone, ending = report.environment.world_size <= 1, report.ending
    return alone and ending.of_environment and _MISSING.search(ending.message) is not None


def ending_words(report: Report) -> tuple[str, str] | None:
    """Return how the run ended, as a verb and a reason; None if it finished."""
    ending = report.ending
    reason = ending.message.strip().rstrip(".")
    ranks = " (`--world-size N` runs it as one of N ranks)" if _needs_launcher(report) else ""
    because = f": {reason}{ranks}" if reason else ""
    if ending.how == "error":
        return "failed", because
    if ending.how == "not-emulated":
        return "was stopped", because
    if ending.how == "interrupted":
        return "was interrupted", ""
    if ending.how == "exit" and ending.status:
        return f"exited with status {ending.status}", because if reason != "os._exit" else ""
    return None
