"""The section of pytest's summary that names the lines that waited."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypedDict

from gapless.analyze import report
from gapless.model import Finding, Session
from gapless.model.finding import RACES
from gapless.model.wording import count
from gapless.render import Style
from gapless.render._canvas import Canvas
from gapless.render._finding import finding

_MOST = 15


class Row(TypedDict):
    """One line that waited in one test."""

    code: str
    name: str
    where: str
    text: str
    waits: int


class Seen(TypedDict):
    """What was seen of one test, in a form that a worker of pytest-xdist can send."""

    device: str
    rows: list[Row]


def seen(session: Session) -> Seen:
    """The findings of one test."""
    style = Style(folder=os.getcwd())
    rows: list[Row] = [
        {
            "code": one.code,
            "name": one.name,
            "where": f"{style.path(one.line.file)}:{one.line.line}" if one.line else one.place,
            "text": one.line.code if one.line else "",
            "waits": one.frequency.total,
        }
        for one in report(session).findings
    ]
    environment = session.environment
    kind = "an emulated " if environment.emulated else ""
    return {"device": f"{kind}{environment.device}", "rows": rows}


def told(session: Session, findings: Sequence[Finding] | None = None) -> str:
    """Every finding (or `findings`) in full, as `gapless check` shows it."""
    found = report(session)
    canvas = Canvas(Style(folder=os.getcwd()))
    advised: dict[str, Finding] = {}
    for at, one in enumerate(found.findings if findings is None else findings):
        if at:
            canvas.blank()
        finding(canvas, one, found, advised.setdefault(one.remedy, one))
    return canvas.text().rstrip()


def write(terminal: Any, tests: dict[str, Seen]) -> None:
    """List the lines: races, then those with most waits first."""
    waits: dict[tuple[str, str, str, str], int] = {}
    where: dict[tuple[str, str, str, str], set[str]] = {}
    for test, one in tests.items():
        for row in one["rows"]:
            key = (row["where"], row["code"], row["name"], row["text"])
            waits[key] = waits.get(key, 0) + row["waits"]
            where.setdefault(key, set()).add(test)
    devices = " and ".join(sorted({one["device"] for one in tests.values()}))
    terminal.write_sep("=", f"syncs on {devices}")
    ordered = sorted(waits, key=lambda key: (not key[1].startswith(RACES), -waits[key], key))
    for key in ordered[: None if terminal.verbosity > 0 else _MOST]:
        place, code, name, text = key
        what = "race" if code.startswith(RACES) else count(waits[key], "sync")
        often = f"{what} in {count(len(where[key]), 'test')}"
        terminal.write_line(f"{often:<20} {code} {name}  {place}")
        if text:
            terminal.write_line(f"{'':<20} {text}"[: max(terminal._tw.fullwidth, 40)])
    if terminal.verbosity <= 0 and len(ordered) > _MOST:
        terminal.write_line(f"… and {count(len(ordered) - _MOST, 'line')} more (-v)")
    quiet = sum(not any(row["waits"] for row in one["rows"]) for one in tests.values())
    terminal.write_line(f"{count(len(tests), 'test')} watched, {quiet} without a sync")
