"""A script that failed because of an assumed value is run again with values, in a process of its own."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence

import msgspec

from gapless.analyze.run.failed_dry import failure_without_values
from gapless.capture.signals import Terminated, terminable
from gapless.commands._again import Again, Ran
from gapless.commands._progress import Progress
from gapless.commands._remedies import smaller_batch
from gapless.model import Session
from gapless.model.assumption import FailedDry
from gapless.model.wording import binary_size

LIMIT = 300.0
"""Seconds that the run with values may take; it is stopped then, and what it saw is reported."""
SMALLER = 8
"""So many times smaller is the batch that is tried where no step comes in that time."""
_SHARE = 0.7
"""Share of the memory available here that the tensors on the GPU may need at the same time."""
_OPTIONS = ("--values", "--quiet", "--silent", "--no-loader")


def with_values(
    session: Session, again: Again | None, progress: Progress, *, explicit: bool, peak: int
) -> Session | None:
    """The session of the script run again with values, if it failed because of an assumed value; else None.

    It is not run again where the user asked for a dry run (`explicit`), where no `again` says how, or where
    its tensors, `peak` bytes at once, do not fit this machine's memory: then it is `session`, which says why.
    """
    failed_dry = failure_without_values(session)
    if failed_dry is None:
        return None
    kept = _kept(again, failed_dry, explicit, peak)
    if kept or again is None:
        return _keeping(session, failed_dry, kept)
    at = f" at {failed_dry.where}" if failed_dry.where else ""
    progress.tried(
        f"without values the script failed{at}, probably because of an assumed value; running it again with "
        f"values, for at most {LIMIT:.0f} s (its output is not shown)"
    )
    rerun, smaller = _without_assumptions(again), ""
    try:
        with terminable():
            ran = rerun(again.words, *_OPTIONS, quiet=(), limit=LIMIT)
            shrunk = smaller_batch(list(again.words), again.module, SMALLER) if _is_stuck(ran) else None
            if shrunk is not None:
                smaller, words = shrunk
                progress.tried(f"no step in {ran.seconds:.0f} s; trying `{smaller}`")
                ran = rerun(words, *_OPTIONS, quiet=(), limit=LIMIT)
    except (KeyboardInterrupt, Terminated):
        return _keeping(session, failed_dry, "its run with values was interrupted")
    if ran.session is None or _is_stuck(ran):
        why = f" ({ran.why})" if ran.why and ran.session is None else ""
        at = f", with `{smaller}` as well" if smaller else ""
        return _keeping(
            session,
            failed_dry,
            f"with values it did not come to a step in {ran.seconds:.0f} s{at}{why}; try `--values` with a "
            "smaller model or batch",
        )
    return msgspec.structs.replace(
        ran.session, failed_dry=msgspec.structs.replace(failed_dry, smaller=smaller)
    )


def _is_stuck(ran: Ran) -> bool:
    """Whether it was stopped before its first step."""
    return ran.session is not None and ran.session.ending.how == "interrupted" and not ran.session.marks


def _kept(again: Again | None, failed_dry: FailedDry, explicit: bool, peak: int) -> str:
    """Why the script is not run again, and what to do; "" if it is to be."""
    place = failed_dry.assumed[0].rpartition(" at ")[2] if failed_dry.assumed else ""
    otherwise = f", or say what to assume: `--assume {place}=VALUE`" if place else ""
    if explicit or again is None:
        return f"check it with `--values`{otherwise}"
    available = _available()
    if available and peak > _SHARE * available:
        times = 1 << math.ceil(math.log2(peak / (_SHARE * available)))
        shrunk = smaller_batch(list(again.words), again.module, times)
        smaller = f"`{shrunk[0]}`" if shrunk is not None else "a smaller model or batch"
        return (
            f"with values it needs more than {binary_size(peak)}, and this machine has "
            f"{binary_size(available)} available; try `--values` with {smaller}{otherwise}"
        )
    return ""


def _keeping(session: Session, failed_dry: FailedDry, kept: str) -> Session:
    return msgspec.structs.replace(session, failed_dry=msgspec.structs.replace(failed_dry, kept=kept))


def _without_assumptions(again: Again) -> Again:
    """The same command line without ``--assume``, which a run with values refuses."""
    return dataclasses.replace(again, options=_left(again.options))


def _left(options: Sequence[str]) -> list[str]:
    left: list[str] = []
    words = iter(options)
    for word in words:
        if word == "--assume":
            next(words, None)
        elif not word.startswith("--assume="):
            left.append(word)
    return left


def _available() -> int:
    """Bytes of memory that are available on this machine; 0 where it does not say."""
    try:
        with open("/proc/meminfo") as stream:
            for line in stream:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
        return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError):
        return 0
