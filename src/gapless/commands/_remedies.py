"""What would make a run fit: the script run again with each change that can be made from outside."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import msgspec

from gapless.analyze.attempts import make_attempt
from gapless.analyze.remedies import calculate_attempts, candidates
from gapless.capture.signals import Terminated, terminable
from gapless.commands._again import Rerun
from gapless.commands._argument import with_argument
from gapless.commands._find import describe_attempt
from gapless.commands._progress import Progress
from gapless.model import Report, Session
from gapless.model.attempt import Attempt

REMEDIES_BUDGET = 300.0
"""Seconds after which no further change is tried."""
_BATCH = re.compile(r"(?P<name>-{0,2}[\w.-]*batch[\w.-]*)=?(?P<value>\d+)?", re.IGNORECASE)


class Remedies:
    """Tries changes, each in its own run."""

    def __init__(self, again: Rerun, progress: Progress) -> None:
        self._again = again
        self._progress = progress

    def try_changes(self, session: Session, report: Report) -> Session:
        """Return `session` with the changes tried, unchanged if it fits or did not end well."""
        lacking = [memory for memory in report.memory if memory.lack is not None]
        if not lacking or not session.ending.is_good:
            return session
        remedies: list[Attempt] = []
        self._progress.announce(
            "does not fit: trying changes that may help, each in a separate run (--no-tries)"
        )
        began = time.monotonic()
        try:
            with terminable():
                for change, words, options in self._changes(session, report):
                    if time.monotonic() - began > REMEDIES_BUDGET:
                        break
                    remedies.append(self._try(change, words, options))
        except (KeyboardInterrupt, Terminated):
            self._progress.announce("stopped: changes not tried yet are left out")
        remedies += calculate_attempts(session, report.memory)
        return msgspec.structs.replace(session, remedies=tuple(remedies))

    def _changes(self, session: Session, report: Report) -> Iterator[tuple[str, list[str], tuple[str, ...]]]:
        words = list(self._again.words)
        for candidate in candidates(session, report.memory):
            yield candidate.label, words, ("--with", candidate.option)
        smaller = smaller_batch(words, self._again.module, 2)
        if smaller is not None:
            yield *smaller, ()

    @staticmethod
    def _hint(change: str, options: tuple[str, ...]) -> str:
        """For an argument of the script: how to find its largest value."""
        if options:
            return ""
        name, value = re.split(r"[= ]", change)
        return f"`--find {name.lstrip('-')}:1..{2 * int(value)}` finds the largest"

    def _try(self, change: str, words: list[str], options: tuple[str, ...]) -> Attempt:
        ran = self._again(words, *options)
        if ran.session is None:
            result = Attempt(what=change, seconds=ran.seconds, failed=ran.why)
        else:
            result = make_attempt(ran.session, change, seconds=ran.seconds)
        self._progress.announce(describe_attempt(result))
        command = " ".join((*options, *words))
        return msgspec.structs.replace(result, command=command, note=self._hint(change, options))


def smaller_batch(words: list[str], module: bool, times: int) -> tuple[str, list[str]] | None:
    """Return the change, and the script's words, with a batch size up to `times` times smaller; None if no
    argument holds the batch size.
    """
    smallest = None
    while times > 1:
        halved = half_batch(words if module else words[1:])
        if halved is None:
            break
        change, changed = halved
        words = changed if module else [words[0], *changed]
        smallest, times = (change, words), times // 2
    return smallest


def half_batch(words: list[str]) -> tuple[str, list[str]] | None:
    """Halve the argument with ``batch`` in its name on the command line; None if there is none.

    >>> half_batch(["--epochs", "1", "--batch-size", "8"])
    ('--batch-size 4', ['--epochs', '1', '--batch-size', '4'])
    """
    for at, word in enumerate(words):
        match = _BATCH.fullmatch(word)
        if match is None:
            continue
        follows = words[at + 1] if match["value"] is None and at + 1 < len(words) else ""
        value = match["value"] or follows
        if not value.isdigit() or int(value) < 2 or (match["value"] and "=" not in word):
            continue
        half = int(value) // 2
        joint = "=" if match["value"] else " "
        return f"{match['name'].rstrip('=')}{joint}{half}", with_argument(
            words, match["name"].rstrip("="), half
        )
    return None
