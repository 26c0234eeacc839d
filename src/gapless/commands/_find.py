"""``gapless check --find batch_size:8..256``: run the script repeatedly to find the largest value that
fits."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gapless.analyze.attempts import make_attempt
from gapless.analyze.phrases.fit import until_full
from gapless.capture.signals import Terminated, terminable
from gapless.commands import _ranks
from gapless.commands._again import Rerun
from gapless.commands._argument import ArgumentRange, parse, read_source, with_argument
from gapless.commands._progress import Progress
from gapless.errors import UsageError
from gapless.memory.largest import LargestSearch
from gapless.model import Session
from gapless.model.attempt import Attempt, Search
from gapless.model.wording import binary_size, duration


def search_argument(text: str, again: Rerun, progress: Progress) -> Session | None:
    """Return the session that answers ``--find text``, with the search in it; None if the command was ended.

    Raises:
        UsageError: `text` has no valid range, ranks run here, or the script does not take the argument.
    """
    wanted = parse(text)
    if _ranks.several():
        raise UsageError(
            "--find runs the script several times, so it cannot run under a launcher: use --world-size N"
        )
    progress.announce(f"looking for the largest {wanted.name} from {wanted.least} to {wanted.most} that fits")
    try:
        with terminable():  # a run under way ends with the command
            return FitSearch(wanted, again, progress)()
    except Terminated:
        return None


class FitSearch:
    """Tries values, and keeps the session of the largest that fits, or of the smallest if none does."""

    def __init__(self, wanted: ArgumentRange, again: Rerun, progress: Progress) -> None:
        self._wanted = wanted
        self._again = again
        self._progress = progress
        self._source = "" if again.module else read_source(again.words[0])
        self._sessions: dict[int, Session] = {}

    def __call__(self) -> Session:
        """Search, and return the session of the run that answers.

        Raises:
            UsageError: the script fails with the smallest value, or the argument changes nothing.
        """
        wanted = self._wanted
        largest = LargestSearch(self._try, wanted.least, wanted.most, wanted.by)
        largest_value = largest.run()
        attempts = tuple(trial for _, trial in sorted(largest.attempts.items()))
        self._refuse_idle(attempts)
        search = Search(
            argument=wanted.name.strip("-="),
            least=wanted.least,
            most=wanted.most,
            by=wanted.by,
            found=largest_value,
            holes=largest.holes,
            attempts=attempts,
            words=self._argument_text(largest_value if largest_value >= 0 else wanted.least),
        )
        session = self._sessions[largest_value if largest_value >= 0 else wanted.least]
        return msgspec.structs.replace(session, search=search)

    def _words(self, value: int) -> list[str]:
        script, words = ([], self._again.words) if self._again.module else (
            [self._again.words[0]],
            self._again.words[1:],
        )  # fmt: skip
        return [*script, *with_argument(words, self._wanted.name, value, self._source)]

    def _argument_text(self, value: int) -> str:
        """Return the argument as it appears on the script's command line."""
        words, before = self._words(value), list(self._again.words)
        first = next((at for at, word in enumerate(words) if at >= len(before) or word != before[at]), -1)
        if first < 0:
            first = next(at for at, word in enumerate(words) if word.endswith(str(value)))
        joined = not words[first].lstrip("-").isdigit()
        return words[first] if joined else f"{words[first - 1]} {words[first]}"

    def _try(self, value: int) -> Attempt:
        wanted = self._wanted
        description = f"{wanted.name.strip('-=')}={value}"
        ran = self._again(self._words(value))
        if ran.session is None:
            result = Attempt(what=description, value=value, seconds=ran.seconds, failed=ran.why)
        else:
            result = make_attempt(ran.session, description, value=value, seconds=ran.seconds)
            if result.failed and ran.why:
                result = msgspec.structs.replace(result, failed=ran.why)
            self._sessions[value] = ran.session
        self._progress.announce(describe_attempt(result))
        if result.failed and value == wanted.least:
            raise UsageError(
                f"the script does not run with {self._argument_text(value)}: {result.failed}. Does it take "
                "this argument? Write the name as the script expects it: --find=--batch-size:8..256"
            )
        if result.fits:  # smaller ones are not needed any more
            self._sessions = {at: kept for at, kept in self._sessions.items() if at >= value}
        return result

    def _refuse_idle(self, attempts: Sequence[Attempt]) -> None:
        """Refuse an argument that the script ignores: several values need the same memory to the byte.

        Raises:
            UsageError: the argument changes nothing.
        """
        measured = [trial for trial in attempts if not trial.failed]
        if len(measured) > 1 and len({(trial.needs, trial.allocated) for trial in measured}) == 1:
            raise UsageError(
                f"{self._argument_text(measured[-1].value)} changes nothing: with {measured[0].value} and "
                f"with {measured[-1].value} the script needs the same {binary_size(measured[0].needs)}. "
                "Does it take this argument?"
            )


def describe_attempt(attempt: Attempt) -> str:
    """Return ``batch_size=64: fits, 12.3 GiB of 78.7 GiB (4.2 s)``."""
    took = duration(attempt.seconds * 1e9)
    if attempt.failed:
        return f"{attempt.what}: {attempt.failed} ({took})"
    needs = f"{binary_size(attempt.needs)} of {binary_size(attempt.has)}"
    fits = f"fits {until_full(attempt.lasts)}".strip() if attempt.fits else "does not fit"
    return f"{attempt.what}: {fits}, {needs} ({took})"
