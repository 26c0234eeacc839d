"""Run a script that failed because of an assumed value again with values, in its own process."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence

import msgspec

from gapless.analyze.run.failed_dry import failure_without_values
from gapless.capture.signals import Terminated, terminable
from gapless.commands._again import Rerun, RunResult
from gapless.commands._progress import Progress
from gapless.commands._remedies import smaller_batch
from gapless.model import Session
from gapless.model.assumption import FailedDry
from gapless.model.wording import binary_size

VALUES_TIME_LIMIT = 300.0
"""Seconds that the run with values may take; it is then stopped, and what it recorded is reported."""
BATCH_DIVISOR = 8
"""How many times smaller a batch is tried if no step ends within that time."""
_MAX_MEMORY_SHARE = 0.7
"""Share of this machine's available memory that the GPU's tensors may need at once; the rest is for the
script."""
_OPTIONS = ("--values", "--quiet", "--silent", "--no-loader")


def with_values(
    session: Session, again: Rerun | None, progress: Progress, *, explicit: bool, peak: int
) -> Session | None:
    """Return the session of a run with values if the script failed because of an assumed value, else None.

    There is no such run if the user chose a dry run (`explicit`), without `again`, or if its `peak` bytes of
    tensors do not fit this machine's memory: then the result is `session` with the reason.
    """
    failed_dry = failure_without_values(session)
    if failed_dry is None:
        return None
    reason = _reason_not_to_rerun(again, failed_dry, explicit, peak)
    if reason or again is None:
        return _with_reason(session, failed_dry, reason)
    at = f" at {failed_dry.where}" if failed_dry.where else ""
    progress.announce(
        f"without values the script failed{at}, probably because of an assumed value; running it again with "
        f"values, for at most {VALUES_TIME_LIMIT:.0f} s (its output is not shown)"
    )
    rerun, smaller = _without_assumptions(again), ""
    try:
        with terminable():
            ran = rerun(again.words, *_OPTIONS, quiet=(), limit=VALUES_TIME_LIMIT)
            shrunk = smaller_batch(list(again.words), again.module, BATCH_DIVISOR) if _is_stuck(ran) else None
            if shrunk is not None:
                smaller, words = shrunk
                progress.announce(f"no step in {ran.seconds:.0f} s; trying `{smaller}`")
                ran = rerun(words, *_OPTIONS, quiet=(), limit=VALUES_TIME_LIMIT)
    except (KeyboardInterrupt, Terminated):
        return _with_reason(session, failed_dry, "its run with values was interrupted")
    if ran.session is None or _is_stuck(ran):
        why = f" ({ran.why})" if ran.why and ran.session is None else ""
        at = f", with `{smaller}` as well" if smaller else ""
        return _with_reason(
            session,
            failed_dry,
            f"with values it did not come to a step in {ran.seconds:.0f} s{at}{why}; try `--values` with a "
            "smaller model or batch",
        )
    return msgspec.structs.replace(
        ran.session, failed_dry=msgspec.structs.replace(failed_dry, smaller=smaller)
    )


def _is_stuck(ran: RunResult) -> bool:
    """Whether the run was stopped before its first step."""
    return ran.session is not None and ran.session.ending.how == "interrupted" and not ran.session.marks


def _reason_not_to_rerun(again: Rerun | None, failed_dry: FailedDry, explicit: bool, peak: int) -> str:
    """Return why the script is not run again, and what to do instead; "" if it is run."""
    place = failed_dry.assumed[0].rpartition(" at ")[2] if failed_dry.assumed else ""
    otherwise = f", or say what to assume: `--assume {place}=VALUE`" if place else ""
    if explicit or again is None:
        return f"check it with `--values`{otherwise}"
    available = _available_memory()
    if available and peak > _MAX_MEMORY_SHARE * available:
        times = 1 << math.ceil(math.log2(peak / (_MAX_MEMORY_SHARE * available)))
        shrunk = smaller_batch(list(again.words), again.module, times)
        smaller = f"`{shrunk[0]}`" if shrunk is not None else "a smaller model or batch"
        return (
            f"with values it needs more than {binary_size(peak)}, and this machine has "
            f"{binary_size(available)} available; try `--values` with {smaller}{otherwise}"
        )
    return ""


def _with_reason(session: Session, failed_dry: FailedDry, reason: str) -> Session:
    return msgspec.structs.replace(session, failed_dry=msgspec.structs.replace(failed_dry, kept=reason))


def _without_assumptions(again: Rerun) -> Rerun:
    """Return the command line without ``--assume``, which a run with values refuses."""
    return dataclasses.replace(again, options=_drop_assumptions(again.options))


def _drop_assumptions(options: Sequence[str]) -> list[str]:
    remaining: list[str] = []
    words = iter(options)
    for word in words:
        if word == "--assume":
            next(words, None)
        elif not word.startswith("--assume="):
            remaining.append(word)
    return remaining


def _available_memory() -> int:
    """Return this machine's available memory in bytes, 0 if unknown."""
    try:
        with open("/proc/meminfo") as stream:
            for line in stream:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
        return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError):
        return 0
