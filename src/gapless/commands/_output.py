"""Where reports and progress go: Gapless's own streams, whatever the script does to the standard ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TextIO

import click
import msgspec
from rich.console import Console

from gapless.errors import EXIT_OK, GaplessError, UnreadableInput, UsageError
from gapless.files.output import is_stream, refuse_unwritable
from gapless.model import Report
from gapless.render import Style, alone, formats, together
from gapless.render._brief import plain

_PIPED_WIDTH = 80
"""Columns of a report that is not written to a terminal."""
_WIDEST = 100
"""Columns of a report on a terminal: longer lines are hard to read."""


def own_copy(stream: TextIO | None) -> TextIO:
    """Return a stream to where `stream` goes now, which stays open when the script closes or redirects
    `stream`.

    It is closed when the command ends. If `stream` is None (closed before Python started), output is dropped.
    """
    try:
        where = os.devnull if stream is None else os.dup(stream.fileno())
    except (OSError, ValueError, AttributeError):
        assert stream is not None
        return stream  # not a file: a notebook's or a test's
    # No report may fail for a character that the terminal cannot show.
    encoding = stream.encoding if stream is not None else "utf-8"
    copy = open(where, "w", encoding=encoding, errors="backslashreplace", buffering=1)  # noqa: SIM115
    context = click.get_current_context(silent=True)
    if context is not None:
        context.call_on_close(partial(_close, copy))
    return copy


def _close(stream: TextIO) -> None:
    with suppress(OSError):  # whoever read it has left
        stream.close()


def say(text: str) -> None:
    """Write Gapless's own lines to standard error; names in them cannot control the terminal or a CI service.

    Only the first line gets the prefix, unless a service would take a later one for a command.
    """
    for number, line in enumerate(text.split("\n")):
        signed = not number or line.lstrip().startswith(("::", "##["))
        click.echo(f"gapless: {plain(line)}" if signed else plain(line), err=True)


def save_or_explain(save: Callable[[], None]) -> int:
    """Run `save` and return the exit status; if it fails say why, so that a full disk loses no report."""
    try:
        save()
    except UnreadableInput as error:
        say(str(error))
        return error.exit_code
    return EXIT_OK


def _refuse_unwritable(_context: click.Context, _option: click.Parameter, path: str | None) -> str | None:
    """Return `path`; refuse it before anything runs if it could not be written afterwards."""
    if path is not None:
        refuse_unwritable(path)
    return path


def refuse_inputs(output: str | None, inputs: Sequence[str]) -> None:
    """Refuse to overwrite an input.

    Raises:
        UsageError: `output` is one of `inputs`.
    """
    if output is None or is_stream(output) or not os.path.exists(output):
        return
    for path in inputs:
        if os.path.exists(path) and os.path.samefile(path, output):
            raise UsageError(f"{output} is read: write to another file")


def file_option(*names: str, **more: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make an option that names a file to write."""
    return click.option(*names, metavar="FILE", callback=_refuse_unwritable, **more)


def redirect_to_stderr() -> None:
    """Send what the script and its child processes write to standard output to standard error."""
    sys.stdout.flush()
    try:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        sys.stdout = sys.stderr  # not files: a notebook's or a test's


def style_for(stream: TextIO | None, *, color: bool = True, **more: Any) -> Style:
    """Return the style that `stream` can show: width, colours, characters. None is a closed stream."""
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
    """Write `text` after everything written so far; return False if nobody reads `stream` any more.

    Nothing is written if `stream` is None.

    Raises:
        GaplessError: it cannot be written, for example because the disk is full.
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
        _discard_rest(stream)
        return False
    except OSError as error:  # a full disk
        _discard_rest(stream)
        raise GaplessError(f"cannot write the report: {error.strerror}") from None
    return True


def _discard_rest(stream: TextIO) -> None:
    """Discard what is still buffered, at exit too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Shown(msgspec.Struct, frozen=True):
    """How reports are shown: the values of the options of :func:`report_options`."""

    form: str = "text"
    unfold: bool = False
    verbose: bool = False
    no_color: bool = False

    @property
    def alone(self) -> bool:
        """Whether the report is a whole document that nothing else may be mixed with."""
        return alone(self.form)

    @property
    def lead(self) -> str:
        """A blank line between the script's output and the report, except for whole documents."""
        return "" if self.alone else "\n"

    def style(self, stream: TextIO | None, **more: Any) -> Style:
        """Return the style for showing the report on `stream`."""
        wanted = {"color": not self.no_color, "unfold": self.unfold, "frames": self.verbose}
        return style_for(stream, **wanted, folder=os.getcwd(), **more)

    def refuse_terminal(self, example: str) -> None:
        """Refuse to write an HTML page to a terminal, with an `example` of how to save it.

        Raises:
            UsageError: a page would go to a terminal.
        """
        if self.form == "html" and sys.stdout is not None and sys.stdout.isatty():
            raise UsageError(f"an HTML page is not for a terminal: {example} > report.html")

    def write(self, reports: Sequence[Report], stream: TextIO | None = None) -> None:
        """Write `reports` to `stream`, or to standard output."""
        from gapless.analyze.across import with_summary

        stream = stream or sys.stdout
        write(stream, together(self.form, with_summary(reports), self.style(stream)))


def report_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options about how a report is shown to `command`, whose options contain a `Shown`."""
    options = (
        click.option("-f", "--format", "form", type=click.Choice(formats()), show_default=True),
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
        command = option(command)
    return command
