"""Jupyter and IPython: ``%load_ext gapless``, then ``%%gapless`` at the top of a cell."""

from __future__ import annotations

import linecache
import os
import shlex
import sys
import traceback
from typing import Any

import click
import msgspec

from gapless.errors import GaplessError, UsageError, require_torch
from gapless.model import Ending, Report, Session, SourceLine
from gapless.render import Style, _cell, renderer

_HELP = """%%gapless [--gpu NAME] [--devices N] [--into NAME] [--all]

Run the cell on an emulated CUDA device and show each line that makes the CPU wait for it. Variables that
the cell assigns remain, but tensors that it placed on the device cannot be used afterwards: let the cell
create its own model and data.

  --gpu NAME      the GPU to emulate: A100 (the default), H100, T4, …
  --devices N     how many of them
  --into NAME     assign the report to this variable
  --all           show what happens outside training steps (in text)
"""


def load_ipython_extension(shell: Any) -> None:
    """Called by ``%load_ext gapless``: the magic, and reports that show themselves."""
    shell.register_magic_function(_magic(shell), "cell", "gapless")
    formatters = shell.display_formatter.formatters
    formatters["text/html"].for_type(Report, as_html)
    formatters["text/plain"].for_type(Report, _pretty)


def unload_ipython_extension(shell: Any) -> None:
    """Called by ``%unload_ext gapless``."""
    shell.magics_manager.magics["cell"].pop("gapless", None)
    formatters = shell.display_formatter.formatters
    for name in ("text/html", "text/plain"):
        formatters[name].pop(Report, None)


def as_html(report: Report) -> str:
    """`report` as a piece of HTML."""
    return _cell.render(report, Style(folder=os.getcwd()))


def as_text(report: Report, *, unfold: bool = False) -> str:
    """`report` as text of 80 columns."""
    return renderer("text")(report, Style(folder=os.getcwd(), unfold=unfold))


def _pretty(report: Report, printer: Any, cycle: bool) -> None:
    printer.text(as_text(report).rstrip("\n"))


class Shown:
    """A report as the output of a cell: HTML where that can be shown, else text."""

    def __init__(self, report: Report, unfold: bool = False) -> None:
        self.report = report
        self._unfold = unfold

    def _repr_html_(self) -> str:
        return as_html(self.report)

    def __repr__(self) -> str:
        return as_text(self.report, unfold=self._unfold).rstrip("\n")


def _magic(shell: Any) -> Any:
    def gapless(line: str, cell: str) -> Shown | None:
        try:
            wishes = _options(line)
        except (UsageError, click.ClickException, ValueError) as error:
            said = error.format_message() if isinstance(error, click.ClickException) else str(error)
            sys.stderr.write(f"gapless: {said}\n\n{_HELP}")
            return None
        try:
            report = run(shell, cell, wishes["gpu"], wishes["devices"])
        except GaplessError as error:
            sys.stderr.write(f"gapless: {error}\n")
            return None
        if wishes["into"]:
            shell.user_ns[wishes["into"]] = report
        return Shown(report, wishes["unfold"])

    gapless.__doc__ = _HELP
    return gapless


def run(shell: Any, cell: str, gpu: str | None = None, devices: int | None = None) -> Report:
    """Run `cell` in the shell's namespace on an emulated device, and report; one that fails is reported, too.

    Raises:
        UsageError: no GPU of that name, an emulation is on already, or there is no torch.
    """
    from gapless.analyze import report
    from gapless.files.input import source_text

    require_torch("%%gapless runs the cell")
    from gapless.emulation.emulator import Emulator

    name = f"cell {shell.execution_count}"
    blank = len(cell) - len(cell.lstrip("\n"))
    text = "\n" * (blank + 1) + shell.transform_cell(cell)  # lines are counted from the magic's own
    code = _compiled(shell, text, name)
    with Emulator(gpu, devices, programme=True) as emulator:
        if code is None:
            ending = Ending(how="error", status=1, message="SyntaxError")
        else:
            failure = _executed(shell, code)
            ending = Ending(how="error", status=1, message=failure) if failure else Ending()
        session = emulator.session(script=("the cell",), ending=ending)
    cells = _cells(shell, session)

    def read(file: str) -> str:
        return text if file == name else source_text(cells.get(file, file))

    made = report(_renamed(session, cells), read=read)
    sentence = made.sentence[:1].upper() + made.sentence[1:]
    return msgspec.structs.replace(made, verdict=msgspec.structs.replace(made.verdict, sentence=sentence))


def _cells(shell: Any, session: Session) -> dict[str, str]:
    """The files that IPython made of cells, by what a reader calls these: ``cell 2``."""
    tell = getattr(shell.compile, "format_code_name", None)
    found: dict[str, str] = {}
    stacks = [stack for one in session.sites for stack in (one.stack, one.forward)]
    stacks += [one.stack for one in session.marks]
    for file in {line.file for stack in stacks for line in stack}:
        told = tell(file) if tell is not None else None  # ("Cell", "In[2]")
        if told:
            found[f"cell {told[1].removeprefix('In[').removesuffix(']')}"] = file
    return found


def _renamed(session: Session, cells: dict[str, str]) -> Session:
    """`session` with the cells' names in place of their files'."""
    names = {file: name for name, file in cells.items()}

    def stack(lines: tuple[SourceLine, ...]) -> tuple[SourceLine, ...]:
        return tuple(
            msgspec.structs.replace(line, file=names[line.file]) if line.file in names else line
            for line in lines
        )

    sites = (
        msgspec.structs.replace(one, stack=stack(one.stack), forward=stack(one.forward))
        for one in session.sites
    )
    marks = (msgspec.structs.replace(one, stack=stack(one.stack)) for one in session.marks)
    return msgspec.structs.replace(session, sites=tuple(sites), marks=tuple(marks))


def _compiled(shell: Any, text: str, name: str) -> Any:
    """The cell's code, with its lines where tracebacks and reports find them; None where it is no Python."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    try:
        return compile(text, name, "exec", flags=shell.compile.flags)
    except SyntaxError:
        shell.showsyntaxerror(name)
        return None


def _executed(shell: Any, code: Any) -> str:
    """Run `code`; what it failed with, in one line, "" where it did not. The traceback is shown."""
    try:
        exec(code, shell.user_global_ns, shell.user_ns)
    except Exception as error:
        trace = error.__traceback__
        inside = trace.tb_next if trace is not None else None  # without this function
        shell.showtraceback((type(error), error, inside), tb_offset=0)
        return "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[-1]
    return ""


@click.command(add_help_option=False)
@click.option("--gpu")
@click.option("--devices", type=click.IntRange(1))
@click.option("--into", metavar="NAME")
@click.option("--all", "unfold", is_flag=True)
def _parser(**_: object) -> None:
    """The options of the magic; it is only parsed with."""


def _options(line: str) -> dict[str, Any]:
    with _parser.make_context("%%gapless", shlex.split(line)) as context:
        wishes = dict(context.params)
    if wishes["into"] and not wishes["into"].isidentifier():
        raise UsageError(f"{wishes['into']!r} is not a variable name")
    return wishes
