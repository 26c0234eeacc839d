"""Running a piece of code on the emulated device, and what was found at which of its lines."""

from __future__ import annotations

import collections
import contextlib
import io
import linecache
import re
from pathlib import Path
from typing import NamedTuple

import torch

import gapless
from gapless.model import Rule
from gapless.rules import match_rule

Found = collections.defaultdict[int, "collections.Counter[str]"]


PRELUDE = (Path(__file__).parent / "cases" / "prelude.py").read_text()
CASES = {
    path.name[:6].upper(): path.read_text() for path in (Path(__file__).parent / "cases").glob("gap*.py")
}


class Wait(NamedTuple):
    """Waits at one site: the rule's code, its remedy, and the line with its count."""

    code: str
    remedy: str
    at: tuple[int, int]


def waits_of(text: str, path: Path) -> list[Wait]:
    """Run `text` as the script at `path` on the emulated device, and return its waits.

    Raises:
        AssertionError: a wait is shown at a line of another file.
    """
    linecache.checkcache(str(path))
    torch.distributions.Distribution.set_default_validate_args(True)  # compiling turns it off for the process
    names = {"__name__": "__main__", "__file__": str(path)}
    with gapless.emulate() as emulation:
        try:
            exec(compile(text, str(path), "exec"), names)
        finally:
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
    session = emulation.session
    waits = []
    for event in session.events:
        site = session.sites[event.site]
        line = site.line
        assert line is not None, f"no line for {site.operator}"
        assert line.file == str(path), f"{site.operator} is shown at {line.where}, not in {path}"
        rule = match_rule(site)
        waits.append(Wait(rule.code, rule.remedy(site), (line.line, event.waits)))
    return waits


def run(text: str, path: Path) -> Found:
    """Run `text` as the script at `path` on the emulated device: waits by line and rule."""
    counts: Found = collections.defaultdict(collections.Counter)
    for wait in waits_of(text, path):
        line, times = wait.at
        counts[line][wait.code] += times
    return counts


def has_example(rule: Rule) -> bool:
    """Whether the example in the documentation of `rule` can run here."""
    return "# example is not run: " not in CASES.get(rule.code, "")


def run_example(rule: Rule, title: str, folder: Path) -> list[Wait]:
    """Run the code of one section of the documentation of `rule`, and return its waits."""
    if not has_example(rule):
        return []
    (code,) = re.findall(r"```python\n(.*?)```", rule.sections()[title], flags=re.DOTALL)
    extra = re.findall(r"^# example: (.*\n)", CASES.get(rule.code, ""), flags=re.MULTILINE)
    before = PRELUDE + "".join(extra)
    path = folder / "example.py"
    path.write_text(before + code)
    with contextlib.redirect_stdout(io.StringIO()):
        waits = waits_of(before + code, path)
    first = before.count("\n") + 1
    return [wait for wait in waits if wait.at[0] >= first]
