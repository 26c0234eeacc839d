"""The section of pytest's summary that lists the lines that waited."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypedDict

from gapless.analyze import report
from gapless.model import Finding, Session
from gapless.model.finding import RACE_PREFIX
from gapless.model.wording import count
from gapless.render import Style
from gapless.render._canvas import Canvas
from gapless.render._finding import finding

_MAX_ROWS = 15
"""Rows listed without -v, so that the summary fits a screen."""


class WaitRow(TypedDict):
    """A line that waited in one test."""

    code: str
    name: str
    where: str
    text: str
    waits: int


class TestWaits(TypedDict):
    """The waits of one test, in a form that a pytest-xdist worker can send."""

    device: str
    rows: list[WaitRow]


def summarize_waits(session: Session) -> TestWaits:
    """Return the findings of one test."""
    style = Style(folder=os.getcwd())
    rows: list[WaitRow] = [
        {
            "code": item.code,
            "name": item.name,
            "where": f"{style.path(item.line.file)}:{item.line.line}" if item.line else item.place,
            "text": item.line.code if item.line else "",
            "waits": item.frequency.total,
        }
        for item in report(session).findings
    ]
    environment = session.environment
    kind = "an emulated " if environment.emulated else ""
    return {"device": f"{kind}{environment.device}", "rows": rows}


def describe_findings(session: Session, findings: Sequence[Finding] | None = None) -> str:
    """Return every finding (or `findings`) in full, as `gapless check` shows it."""
    test_report = report(session)
    canvas = Canvas(Style(folder=os.getcwd()))
    advised: dict[str, Finding] = {}
    for at, item in enumerate(test_report.findings if findings is None else findings):
        if at:
            canvas.blank()
        finding(canvas, item, test_report, advised.setdefault(item.remedy, item))
    return canvas.text().rstrip()


def write(terminal: Any, tests: dict[str, TestWaits]) -> None:
    """Write the lines: races, then those with the most waits first."""
    waits: dict[tuple[str, str, str, str], int] = {}
    where: dict[tuple[str, str, str, str], set[str]] = {}
    for test, test_waits in tests.items():
        for row in test_waits["rows"]:
            key = (row["where"], row["code"], row["name"], row["text"])
            waits[key] = waits.get(key, 0) + row["waits"]
            where.setdefault(key, set()).add(test)
    devices = " and ".join(sorted({test_waits["device"] for test_waits in tests.values()}))
    terminal.write_sep("=", f"syncs on {devices}")
    ordered = sorted(waits, key=lambda key: (not key[1].startswith(RACE_PREFIX), -waits[key], key))
    for key in ordered[: None if terminal.verbosity > 0 else _MAX_ROWS]:
        place, code, name, text = key
        event = "race" if code.startswith(RACE_PREFIX) else count(waits[key], "sync")
        often = f"{event} in {count(len(where[key]), 'test')}"
        terminal.write_line(f"{often:<20} {code} {name}  {place}")
        if text:
            terminal.write_line(f"{'':<20} {text}"[: max(terminal._tw.fullwidth, 40)])
    if terminal.verbosity <= 0 and len(ordered) > _MAX_ROWS:
        terminal.write_line(f"… and {count(len(ordered) - _MAX_ROWS, 'line')} more (-v)")
    quiet = sum(not any(row["waits"] for row in test_waits["rows"]) for test_waits in tests.values())
    terminal.write_line(f"{count(len(tests), 'test')} watched, {quiet} without a sync")
