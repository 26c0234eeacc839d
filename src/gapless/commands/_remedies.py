"""What would make a run fit: the script run again with each change that can be made from outside."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import msgspec

from gapless.analyze.attempts import attempt
from gapless.analyze.remedies import calculate_attempts, candidates
from gapless.analyze.session_report import with_loaders
from gapless.capture.signals import Terminated, terminable
from gapless.commands._again import Again
from gapless.commands._argument import given
from gapless.commands._find import described
from gapless.commands._progress import Progress
from gapless.model import Report, Session
from gapless.model.attempt import Attempt

BUDGET = 300.0
"""Seconds after which no further change is tried."""
_BATCH = re.compile(r"(?P<name>-{0,2}[\w.-]*batch[\w.-]*)=?(?P<value>\d+)?", re.IGNORECASE)
_GOOD = ("finished", "enough-steps", "exit")


def with_remedies(
    session: Session, report: Report, again: Again, progress: Progress
) -> tuple[Session, Report]:
    """Both with what would make the run fit, which does not."""
    session = Remedies(again, progress).tried(session, report)
    return session, with_loaders(msgspec.structs.replace(report, remedies=session.remedies), session.loaders)


class Remedies:
    """Tries changes one by one, each in a run of its own."""

    def __init__(self, again: Again, progress: Progress) -> None:
        self._again = again
        self._progress = progress

    def tried(self, session: Session, report: Report) -> Session:
        """`session` with what was tried, where it does not fit; else as it was."""
        lacking = [made for made in report.memory if made.lack is not None]
        if not lacking or session.ending.how not in _GOOD or session.ending.status:
            return session
        remedies: list[Attempt] = []
        self._progress.tried(
            "does not fit: trying changes that may help, each in a separate run (--no-tries)"
        )
        began = time.monotonic()
        try:
            with terminable():
                for what, words, options in self._changes(session, report):
                    if time.monotonic() - began > BUDGET:
                        break
                    remedies.append(self._try(what, words, options))
        except (KeyboardInterrupt, Terminated):
            self._progress.tried("stopped: changes not tried yet are left out")
        remedies += calculate_attempts(session, report.memory)
        return msgspec.structs.replace(session, remedies=tuple(remedies))

    def _changes(self, session: Session, report: Report) -> Iterator[tuple[str, list[str], tuple[str, ...]]]:
        words = list(self._again.words)
        for one in candidates(session, report.memory):
            yield one.what, words, ("--with", one.option)
        smaller = smaller_batch(words, self._again.module, 2)
        if smaller is not None:
            yield *smaller, ()

    @staticmethod
    def _hint(what: str, options: tuple[str, ...]) -> str:
        """For an argument of the script: how to find the largest value."""
        if options:
            return ""
        name, value = re.split(r"[= ]", what)
        return f"`--find {name.lstrip('-')}:1..{2 * int(value)}` finds the largest"

    def _try(self, what: str, words: list[str], options: tuple[str, ...]) -> Attempt:
        ran = self._again(words, *options)
        if ran.session is None:
            made = Attempt(what=what, seconds=ran.seconds, failed=ran.why)
        else:
            made = attempt(ran.session, what, seconds=ran.seconds)
        self._progress.tried(described(made))
        command = " ".join((*options, *words))
        return msgspec.structs.replace(made, command=command, note=self._hint(what, options))


def smaller_batch(words: list[str], module: bool, times: int) -> tuple[str, list[str]] | None:
    """The script and its arguments with a batch that is at most so many times smaller; None where no argument
    says how large it is."""
    found = None
    while times > 1:
        halved = half_batch(words if module else words[1:])
        if halved is None:
            break
        what, changed = halved
        words = changed if module else [words[0], *changed]
        found, times = (what, words), times // 2
    return found


def half_batch(words: list[str]) -> tuple[str, list[str]] | None:
    """Half of what an argument with ``batch`` in its name says on the command line; None where none does.

    >>> half_batch(["--epochs", "1", "--batch-size", "8"])
    ('--batch-size 4', ['--epochs', '1', '--batch-size', '4'])
    """
    for at, word in enumerate(words):
        found = _BATCH.fullmatch(word)
        if found is None:
            continue
        follows = words[at + 1] if found["value"] is None and at + 1 < len(words) else ""
        value = found["value"] or follows
        if not value.isdigit() or int(value) < 2 or (found["value"] and "=" not in word):
            continue
        half = int(value) // 2
        joint = "=" if found["value"] else " "
        return f"{found['name'].rstrip('=')}{joint}{half}", given(words, found["name"].rstrip("="), half)
    return None
