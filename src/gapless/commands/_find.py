"""``gapless check --find batch_size:8..256``: the script run again and again, for the largest that fits."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gapless.analyze.attempts import attempt
from gapless.analyze.phrases.fit import until_full
from gapless.capture.signals import Terminated, terminable
from gapless.commands import _ranks
from gapless.commands._again import Again
from gapless.commands._argument import Asked, given, parse, source_of
from gapless.commands._progress import Progress
from gapless.errors import UsageError
from gapless.memory.largest import LargestSearch
from gapless.model import Session
from gapless.model.attempt import Attempt, Search
from gapless.model.wording import binary_size, duration


def searched(text: str, again: Again, progress: Progress) -> Session | None:
    """The session that answers ``--find text``, with the search in it; None where the command is ended.

    Raises:
        UsageError: `text` names no values, ranks run here, or the script does not take the argument.
    """
    asked = parse(text)
    if _ranks.several():
        raise UsageError(
            "--find runs the script several times, so it cannot run under a launcher: use --world-size N"
        )
    progress.tried(f"looking for the largest {asked.name} from {asked.least} to {asked.most} that fits")
    try:
        with terminable():  # a run that is under way ends with the command
            return Finder(asked, again, progress)()
    except Terminated:
        return None


class Finder:
    """Tries values, and keeps the session of the largest that fits, else that of the smallest."""

    def __init__(self, asked: Asked, again: Again, progress: Progress) -> None:
        self._asked = asked
        self._again = again
        self._progress = progress
        self._source = "" if again.module else source_of(again.words[0])
        self._sessions: dict[int, Session] = {}

    def __call__(self) -> Session:
        """The session of the run that answers, with the search in it.

        Raises:
            UsageError: the script does not run with the smallest value, or the argument changes nothing.
        """
        asked = self._asked
        largest = LargestSearch(self._try, asked.least, asked.most, asked.by)
        found = largest.run()
        attempts = tuple(attempt for _, attempt in sorted(largest.attempts.items()))
        self._refuse_idle(attempts)
        search = Search(
            argument=asked.name.strip("-="),
            least=asked.least,
            most=asked.most,
            by=asked.by,
            found=found,
            holes=largest.holes,
            attempts=attempts,
            words=self._as_given(found if found >= 0 else asked.least),
        )
        session = self._sessions[found if found >= 0 else asked.least]
        return msgspec.structs.replace(session, search=search)

    def _words(self, value: int) -> list[str]:
        script, words = ([], self._again.words) if self._again.module else (
            [self._again.words[0]],
            self._again.words[1:],
        )  # fmt: skip
        return [*script, *given(words, self._asked.name, value, self._source)]

    def _as_given(self, value: int) -> str:
        """The argument as the script is given it."""
        words, before = self._words(value), list(self._again.words)
        first = next((at for at, word in enumerate(words) if at >= len(before) or word != before[at]), -1)
        if first < 0:
            first = next(at for at, word in enumerate(words) if word.endswith(str(value)))
        joined = not words[first].lstrip("-").isdigit()
        return words[first] if joined else f"{words[first - 1]} {words[first]}"

    def _try(self, value: int) -> Attempt:
        asked = self._asked
        what = f"{asked.name.strip('-=')}={value}"
        ran = self._again(self._words(value))
        if ran.session is None:
            made = Attempt(what=what, value=value, seconds=ran.seconds, failed=ran.why)
        else:
            made = attempt(ran.session, what, value=value, seconds=ran.seconds)
            if made.failed and ran.why:
                made = msgspec.structs.replace(made, failed=ran.why)
            self._sessions[value] = ran.session
        self._progress.tried(described(made))
        if made.failed and value == asked.least:
            raise UsageError(
                f"the script does not run with {self._as_given(value)}: {made.failed}. Does it take this "
                "argument? Write the name as the script expects it: --find=--batch-size:8..256"
            )
        if made.fits:  # smaller ones are not needed any more
            self._sessions = {at: kept for at, kept in self._sessions.items() if at >= value}
        return made

    def _refuse_idle(self, attempts: Sequence[Attempt]) -> None:
        """Several values that need the same to the byte: the script does not heed the argument.

        Raises:
            UsageError: that is so.
        """
        known = [one for one in attempts if not one.failed]
        if len(known) > 1 and len({(one.needs, one.allocated) for one in known}) == 1:
            raise UsageError(
                f"{self._as_given(known[-1].value)} changes nothing: with {known[0].value} and with "
                f"{known[-1].value} the script needs the same {binary_size(known[0].needs)}. Does it take "
                "this argument?"
            )


def described(attempt: Attempt) -> str:
    """``batch_size=64: fits, 12.3 GiB of 78.7 GiB (4.2 s)``."""
    took = duration(attempt.seconds * 1e9)
    if attempt.failed:
        return f"{attempt.what}: {attempt.failed} ({took})"
    needs = f"{binary_size(attempt.needs)} of {binary_size(attempt.has)}"
    fits = f"fits {until_full(attempt.lasts)}".strip() if attempt.fits else "does not fit"
    return f"{attempt.what}: {fits}, {needs} ({took})"
