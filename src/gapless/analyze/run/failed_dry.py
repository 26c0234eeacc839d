"""Decide whether a dry run failed because of an assumed value, and say so in the verdict."""

from __future__ import annotations

import msgspec

from gapless.analyze.run.assumed import decisions
from gapless.analyze.run.loop import ReadSource
from gapless.files.input import source_text
from gapless.model import Session, Verdict
from gapless.model.assumption import Assumption, FailedDry, describe_answer

_UNRELATED_ERRORS = frozenset(
    {
        "ConnectionError", "FileNotFoundError", "ImportError", "ModuleNotFoundError", "NameError",
        "OutOfMemoryError", "PermissionError", "SyntaxError",
    }
)  # fmt: skip
"""Errors that no number in a tensor causes."""
_SHAPE_NEEDED = "which a dry run does not have"
"""What `NotEmulated` says if a result's shape depends on values."""
_MAX_NAMED = 2
"""Assumptions named as the likely reason."""


def failure_without_values(session: Session, read: ReadSource = source_text) -> FailedDry | None:
    """Return how the script failed if assumed values may be the reason, else None."""
    ending = session.ending
    if not session.environment.dry:
        return None
    if ending.how == "not-emulated":
        return FailedDry(message=ending.message) if _SHAPE_NEEDED in ending.message else None
    failed = ending.how == "error" or (ending.how == "exit" and ending.status)
    name = ending.message.partition(":")[0].rpartition(".")[2]
    if not failed or not session.assumptions or name in _UNRELATED_ERRORS:
        return None
    message = ending.message or f"it exited with status {ending.status}"
    deciding = decisions(session.assumptions, read) or session.assumptions
    where = ending.where.replace("\\", "/").rpartition("/")[2]
    return FailedDry(message=message, where=where, assumed=_nearest(deciding, where))


def _nearest(assumptions: tuple[Assumption, ...], where: str) -> tuple[str, ...]:
    """Return the likeliest reasons: the last assumptions before the failing line in its file."""
    file, _, number = where.rpartition(":")
    line = int(number) if number.isdigit() else 0

    def distance(assumption: Assumption) -> tuple[bool, int]:
        at = assumption.line
        before = at is not None and at.short.rpartition(":")[0] == file and at.line <= line
        return not before, line - at.line if before and at is not None else 0

    nearest = sorted(assumptions, key=distance)[:_MAX_NAMED]
    return tuple(
        f"{describe_answer(assumption)} at {assumption.line.short}"
        for assumption in nearest
        if assumption.line is not None
    )


def with_failed_dry(verdict: Verdict, failed_dry: FailedDry | None) -> Verdict:
    """Return `verdict` with the failure without values first, if there was one."""
    if failed_dry is None:
        return verdict
    at = f" at {failed_dry.where}" if failed_dry.where else ""
    assumed = f", after assuming {' and '.join(failed_dry.assumed)}" if failed_dry.assumed else ""
    reason = f"The failure without values{at}: {failed_dry.message.rstrip('.')}{assumed}"
    if not failed_dry.kept:
        smaller = f" and a smaller batch (`{failed_dry.smaller}`)" if failed_dry.smaller else ""
        sentence = f"Checked with values{smaller}: without them the script failed{at}. {verdict.sentence}"
        return msgspec.structs.replace(verdict, sentence=sentence, why=(*verdict.why, reason))
    failure = f"Without values the script failed{at}, probably because of an assumed value"
    sentence = f"{failure}: {failed_dry.kept}"
    return msgspec.structs.replace(
        verdict, sentence=sentence, level="unknown", why=(reason, verdict.sentence), facts=(), confidence=""
    )
