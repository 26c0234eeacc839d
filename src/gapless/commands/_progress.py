"""Progress on standard error: a line at the start, one now and then, one at the end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TextIO

import click

from gapless.model import Session
from gapless.model.assumption import Switch, describe_switch
from gapless.model.wording import count, number, rename_steps
from gapless.render._brief import plain

_SECONDS_BETWEEN_LINES = 10.0
"""Rare enough not to drown the script's own output."""


class Progress:
    """Writes progress in whole lines: the script shares the terminal, and a live display would be torn.

    The script is stopped after `wanted` steps; None runs all.
    """

    def __init__(
        self,
        stream: TextIO,
        wanted: int | None,
        *,
        quiet: bool = False,
        color: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._wanted = wanted
        self._quiet = quiet
        self._color = color
        self._clock = clock
        self._began = self._last = clock()
        self.noun = "step"
        """What an iteration is called, as far as known."""

    def begin(
        self,
        name: str,
        device: str,
        steady: int | None,
        rank: tuple[int, int] | None = None,
        dry: bool = False,
    ) -> None:
        """Announce the script, simulated as `rank` ``(3, 8)``, or run without values (`dry`)."""
        until = "to its end" if steady is None else f"until {count(steady, 'steady step')}"
        alone = f" as rank {rank[0]} of {rank[1]}" if rank is not None else ""
        self._say(f"running {name} on an emulated {device.removeprefix('NVIDIA ')}{alone} {until}")
        if dry:
            self._say("no values: numbers that the script prints are assumed (--values computes them)")

    def warn_misplaced_options(self, words: Sequence[str], name: str) -> None:
        """Warn that the script called `name` receives `words`, which look like options of Gapless."""
        if words:
            was = f"{words[0]} is" if len(words) == 1 else f"{', '.join(words)} are"
            self._say(f"{was} passed to {name}: options of Gapless come before the script")

    def step(self, done: int) -> None:
        """Report that `done` steps have ended, if the last line is old enough."""
        now = self._clock()
        if now - self._last < _SECONDS_BETWEEN_LINES:
            return
        self._last = now
        of = f" of {self._wanted}" if self._wanted is not None and done <= self._wanted else ""
        self._say(f"{self.noun} {done}{of} after {now - self._began:.0f} s")

    def longer(self, names: Iterable[str], seconds: float) -> None:
        """Say that the wanted steps are done and the script runs up to `seconds` longer to reach `names`."""
        phases = " and ".join(f"the next {name}" for name in dict.fromkeys(names))
        if phases:
            steps = self._steps(self._wanted or 0)
            self._say(f"{steps} done; running on to reach {phases}, for at most {number(seconds)} s")

    def without_values(self, switch: Switch) -> None:
        """Say that the script's numbers are assumed from `switch` on."""
        self._say(
            f"{describe_switch(switch)}; numbers that the script prints are assumed (--values computes them)"
        )

    def end(self, session: Session, done: int) -> None:
        how = {"enough-steps": "stopped", "finished": "finished", "exit": "finished"}
        verb = how.get(session.ending.how, "ended")
        self._say(f"{verb} after {self._steps(done)} and {self._clock() - self._began:.1f} s")

    def _steps(self, number: int) -> str:
        return rename_steps(count(number, "step"), self.noun)

    def loader(self, where: str, budget: float) -> None:
        """Announce that the loader created at `where` is measured for at most `budget` seconds."""
        self._say(f"measuring the loader at {where} (about {number(budget)} s; --no-loader skips this)")

    def announce(self, text: str) -> None:
        """Write a line about a further run of the script."""
        self._say(text)

    def saved(self, path: str) -> None:
        self._say(f"saved {path}")

    def problem(self, text: str) -> None:
        """Write a problem, even when quiet."""
        self._write(text)

    def write_unbuffered(self, text: str) -> None:
        """Write a problem from a signal handler, which may have interrupted a write to the stream."""
        with suppress(OSError, ValueError):
            os.write(self._stream.fileno(), f"gapless: {plain(text)}\n".encode(errors="replace"))

    def _say(self, text: str) -> None:
        if not self._quiet:
            self._write(text)

    def _write(self, text: str) -> None:
        line = f"gapless: {plain(text)}"
        color = self._color and self._stream.isatty() and not os.environ.get("NO_COLOR")
        # Progress that nobody reads must not end the script from which it is called.
        with suppress(OSError):
            self._stream.write((click.style(line, dim=True) if color else line) + "\n")
            self._stream.flush()
