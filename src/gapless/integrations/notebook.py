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
    """Register the magic, and how reports are displayed; called by ``%load_ext gapless``."""
    shell.register_magic_function(_magic(shell), "cell", "gapless")
    formatters = shell.display_formatter.formatters
    formatters["text/html"].for_type(Report, as_html)
    formatters["text/plain"].for_type(Report, _pretty)


def unload_ipython_extension(shell: Any) -> None:
    """Remove both; called by ``%unload_ext gapless``."""
    shell.magics_manager.magics["cell"].pop("gapless", None)
    formatters = shell.display_formatter.formatters
    for name in ("text/html", "text/plain"):
        formatters[name].pop(Report, None)


def as_html(report: Report) -> str:
    """Return `report` as an HTML fragment."""
    return _cell.render(report, Style(folder=os.getcwd()))


def as_text(report: Report, *, unfold: bool = False) -> str:
    """Return `report` as text of 80 columns."""
    return renderer("text")(report, Style(folder=os.getcwd(), unfold=unfold))


def _pretty(report: Report, printer: Any, cycle: bool) -> None:
    printer.text(as_text(report).rstrip("\n"))


class CellOutput:
    """A report as a cell's output: HTML if it can be shown, else text."""

    def __init__(self, report: Report, unfold: bool = False) -> None:
        self.report = report
        self._unfold = unfold

    def _repr_html_(self) -> str:
        return as_html(self.report)

    def __repr__(self) -> str:
        return as_text(self.report, unfold=self._unfold).rstrip("\n")


def _magic(shell: Any) -> Any:
    def gapless(line: str, cell: str) -> CellOutput | None:
        try:
            options = _options(line)
        except (UsageError, click.ClickException, ValueError) as error:
            message = error.format_message() if isinstance(error, click.ClickException) else str(error)
            sys.stderr.write(f"gapless: {message}\n\n{_HELP}")
            return None
        try:
            report = run(shell, cell, options["gpu"], options["devices"])
        except GaplessError as error:
            sys.stderr.write(f"gapless: {error}\n")
            return None
        if options["into"]:
            shell.user_ns[options["into"]] = report
        return CellOutput(report, options["unfold"])

    gapless.__doc__ = _HELP
    return gapless


def run(shell: Any, cell: str, gpu: str | None = None, devices: int | None = None) -> Report:
    """Run `cell` in the shell's namespace on an emulated device, and report, even if it fails.

    Raises:
        UsageError: the GPU is unknown, an emulation is already active, or torch is missing.
    """
    from gapless.analyze import report
    from gapless.files.input import source_text

    require_torch("%%gapless runs the cell")
    from gapless.emulation.emulator import Emulator
    from gapless.emulation.options import EmulatorOptions

    name = f"cell {shell.execution_count}"
    blank = len(cell) - len(cell.lstrip("\n"))
    text = "\n" * (blank + 1) + shell.transform_cell(cell)  # lines are counted from the magic's own
    code = _compile(shell, text, name)
    with Emulator(EmulatorOptions(gpu, devices, programme=True)) as emulator:
        if code is None:
            ending = Ending(how="error", status=1, message="SyntaxError")
        else:
            failure = _execute(shell, code)
            ending = Ending(how="error", status=1, message=failure) if failure else Ending()
        session = emulator.session(script=("the cell",), ending=ending)
    cells = _cell_files(shell, session)

    def read(file: str) -> str:
        return text if file == name else source_text(cells.get(file, file))

    cell_report = report(_with_cell_names(session, cells), read=read)
    sentence = cell_report.sentence[:1].upper() + cell_report.sentence[1:]
    return msgspec.structs.replace(
        cell_report, verdict=msgspec.structs.replace(cell_report.verdict, sentence=sentence)
    )


def _cell_files(shell: Any, session: Session) -> dict[str, str]:
    """Return the files that IPython made of cells, by the name a reader knows: ``cell 2``."""
    cell_label = getattr(shell.compile, "format_code_name", None)
    files: dict[str, str] = {}
    stacks = [stack for site in session.sites for stack in (site.stack, site.forward)]
    stacks += [mark.stack for mark in session.marks]
    for file in {line.file for stack in stacks for line in stack}:
        label = cell_label(file) if cell_label is not None else None  # ("Cell", "In[2]")
        if label:
            files[f"cell {label[1].removeprefix('In[').removesuffix(']')}"] = file
    return files


def _with_cell_names(session: Session, cells: dict[str, str]) -> Session:
    """Return `session` with cells named instead of their files."""
    names = {file: name for name, file in cells.items()}

    def stack(lines: tuple[SourceLine, ...]) -> tuple[SourceLine, ...]:
        return tuple(
            msgspec.structs.replace(line, file=names[line.file]) if line.file in names else line
            for line in lines
        )

    sites = (
        msgspec.structs.replace(site, stack=stack(site.stack), forward=stack(site.forward))
        for site in session.sites
    )
    marks = (msgspec.structs.replace(mark, stack=stack(mark.stack)) for mark in session.marks)
    return msgspec.structs.replace(session, sites=tuple(sites), marks=tuple(marks))


def _compile(shell: Any, text: str, name: str) -> Any:
    """Compile the cell and register its lines for tracebacks and reports; None if it is no valid Python."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    try:
        return compile(text, name, "exec", flags=shell.compile.flags)
    except SyntaxError:
        shell.showsyntaxerror(name)
        return None


def _execute(shell: Any, code: Any) -> str:
    """Run `code`; return its error in one line, after showing the traceback, or ""."""
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
    """The options of the magic, used for parsing only."""


def _options(line: str) -> dict[str, Any]:
    with _parser.make_context("%%gapless", shlex.split(line)) as context:
        options = dict(context.params)
    if options["into"] and not options["into"].isidentifier():
        raise UsageError(f"{options['into']!r} is not a variable name")
    return options
