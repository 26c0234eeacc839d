"""Where reports and progress go: streams of Gapless's own, whatever the script does to its."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, TextIO

import click
from rich.console import Console

from gapless.errors import EXIT_OK, GaplessError, UnreadableInput, UsageError
from gapless.files.output import is_stream, refuse
from gapless.model import Report
from gapless.render import Style, alone, formats, together
from gapless.render._brief import plain

_PIPED_WIDTH = 80
_WIDEST = 100


def own_copy(stream: TextIO | None) -> TextIO:
    """A stream to where `stream` goes now, that stays open when `stream` is closed or redirected, as long as
    the command runs.

    It goes nowhere where `stream` is None: Python was started with that descriptor closed.
    """
    try:
        where = os.devnull if stream is None else os.dup(stream.fileno())
    except (OSError, ValueError, AttributeError):
        assert stream is not None
        return stream  # not a file: a notebook's or a test's
    # Nothing that is worth reporting may fail for a character that the terminal cannot show.
    encoding = stream.encoding if stream is not None else "utf-8"
    copy = open(where, "w", encoding=encoding, errors="backslashreplace", buffering=1)  # noqa: SIM115
    context = click.get_current_context(silent=True)
    if context is not None:
        context.call_on_close(partial(_closed, copy))
    return copy


def _closed(stream: TextIO) -> None:
    with suppress(OSError):  # whoever read it has left
        stream.close()


def say(text: str) -> None:
    """Lines of Gapless's own on standard error, in which no name steers the terminal or a CI service.

    Further lines are a traceback, and look like one, unless a service would take one for a command.
    """
    for number, line in enumerate(text.split("\n")):
        signed = not number or line.lstrip().startswith(("::", "##["))
        click.echo(f"gapless: {plain(line)}" if signed else plain(line), err=True)


def kept(save: Callable[[], None]) -> int:
    """Run `save`, and say what kept it from saving, for no report is lost to a full disk; the exit status."""
    try:
        save()
    except UnreadableInput as error:
        say(str(error))
        return error.exit_code
    return EXIT_OK


def _writable(_context: click.Context, _option: click.Parameter, path: str | None) -> str | None:
    """`path`, refused before anything runs where nothing could be written to it afterwards."""
    if path is not None:
        refuse(path)
    return path


def refuse_inputs(output: str | None, inputs: Sequence[str]) -> None:
    """Refuse to write over what is read.

    Raises:
        UsageError: `output` is one of `inputs`.
    """
    if output is None or is_stream(output) or not os.path.exists(output):
        return
    for path in inputs:
        if os.path.exists(path) and os.path.samefile(path, output):
            raise UsageError(f"{output} is read: write to another file")


def file_option(*names: str, **more: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option that names a file to write."""
    return click.option(*names, metavar="FILE", callback=_writable, **more)


def give_way() -> None:
    """From now on what is written to standard output goes to standard error, in processes started, too."""
    sys.stdout.flush()
    try:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        sys.stdout = sys.stderr  # not files: a notebook's or a test's


def style_for(stream: TextIO | None, *, color: bool = True, **more: Any) -> Style:
    """What `stream` can show: its width, its colours, its characters. None was closed before we began."""
    if stream is None:
        return Style(**more)
    console = Console(file=stream, no_color=None if color else True, force_jupyter=False)
    width = min(max(console.width, 40), _WIDEST) if console.is_terminal else _PIPED_WIDTH
    encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "")
    return Style(
        width=width,
        color=None if console.no_color or not console.is_terminal else console.color_system,
        unicode=encoding.startswith("utf"),
        **more,
    )


def write(stream: TextIO | None, text: str) -> bool:
    """Write `text` behind everything that has been written so far; nowhere where `stream` is None.

    False where nobody reads the stream any more.

    Raises:
        GaplessError: it cannot be written, because the disk is full for one.
    """
    if stream is None:
        return True
    for earlier in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the script may have closed or replaced it
            earlier.flush()
    try:
        try:
            stream.write(text)
        except UnicodeEncodeError:  # a page, which says itself that it is UTF-8, whatever the terminal speaks
            stream.buffer.write(text.encode("utf-8", "backslashreplace"))
        stream.flush()
    except BrokenPipeError:
        _turn_away(stream)
        return False
    except OSError as error:  # a full disk
        _turn_away(stream)
        raise GaplessError(f"cannot write the report: {error.strerror}") from None
    return True


def _turn_away(stream: TextIO) -> None:
    """What is still to be flushed goes nowhere, at exit too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@dataclass(frozen=True)
class Shown:
    """How reports are shown: what the options of :func:`report_options` say."""

    form: str
    unfold: bool
    verbose: bool
    no_color: bool

    @property
    def alone(self) -> bool:
        """Whether nothing else may stand where the report goes."""
        return alone(self.form)

    @property
    def lead(self) -> str:
        """What parts it from what a script has written, who may have left the cursor anywhere."""
        return "" if self.alone else "\n"

    def style(self, stream: TextIO | None, **more: Any) -> Style:
        """What `stream` can show of it."""
        wanted = {"color": not self.no_color, "unfold": self.unfold, "frames": self.verbose}
        return style_for(stream, **wanted, folder=os.getcwd(), **more)

    def refuse_terminal(self, example: str) -> None:
        """Pages are for browsers: say how to write one to a file instead of to the terminal.

        Raises:
            UsageError: a page would go to a terminal.
        """
        if self.form == "html" and sys.stdout is not None and sys.stdout.isatty():
            raise UsageError(f"an HTML page is not for a terminal: {example} > report.html")

    def write(self, reports: Sequence[Report], stream: TextIO | None = None) -> None:
        """Write `reports` to `stream`, else to standard output."""
        from gapless.analyze.across import with_summary

        stream = stream or sys.stdout
        write(stream, together(self.form, with_summary(reports), self.style(stream)))


def report_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say how a report is shown; `command` receives them as its `shown`."""

    @wraps(command)
    def bundled(form: str, unfold: bool, verbose: bool, no_color: bool, **more: Any) -> Any:
        return command(shown=Shown(form, unfold, verbose, no_color), **more)

    options = (
        click.option(
            "-f", "--format", "form", type=click.Choice(formats()), default="text", show_default=True
        ),
        click.option(
            "--all",
            "unfold",
            is_flag=True,
            help="Show everything: findings outside of steps, and every row of every table.",
        ),
        click.option(
            "-v",
            "--verbose",
            is_flag=True,
            help="Show every library frame, and Gapless's own frames in tracebacks.",
        ),
        click.option("--no-color", is_flag=True, help="Plain text; the NO_COLOR variable does the same."),
    )
    for option in reversed(options):
        bundled = option(bundled)
    return bundled
