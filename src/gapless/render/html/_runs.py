"""Several runs on one page: the list of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gapless.model import Report
from gapless.model.wording import count, duration, in_column, percent
from gapless.render.html._clean import Clean


def title(reports: Sequence[Report]) -> str:
    """What the page is of."""
    profiles = sum(one.profile is not None for one in reports)
    what = "profile" if profiles == len(reports) else "run" if profiles else "checked script"
    found = sum(len(one.findings) for one in reports)
    return f"{count(len(reports), what)}, {count(found, 'finding')}"


def columns(reports: Sequence[Report]) -> list[str]:
    """Names of the numbers in the list."""
    profiled = any(one.profile is not None for one in reports)
    checked = any(one.profile is None for one in reports)
    return [*(["step", "GPU idle"] if profiled else []), *(["waits a step"] if checked else []), "findings"]


def rows(reports: Sequence[Report], head: Sequence[str], clean: Clean) -> list[dict[str, Any]]:
    """One row for each run."""
    names = _named(_short([_name(one, clean) for one in reports]))
    return [
        {
            "name": name,
            "ranks": _ranks(one),
            "sentence": one.sentence,
            "cells": [_cell(one, column) for column in head],
        }
        for one, name in zip(reports, names, strict=True)
    ]


def _name(report: Report, clean: Clean) -> str:
    """The file, or the script."""
    if report.profile is not None:
        return clean.path(report.profile.path)
    return clean.path(report.path or (report.script[0] if report.script else "run"))


def _ranks(report: Report) -> str:
    return f"and {count(len(report.ranks) - 1, 'more rank')}" if len(report.ranks) > 1 else ""


def _short(names: list[str]) -> list[str]:
    """Names without the folder that they share."""
    parts = [name.replace("\\", "/").split("/") for name in names]
    shared = 0
    while all(len(one) > shared + 1 and one[shared] == parts[0][shared] for one in parts):
        shared += 1
    return ["/".join(one[shared:]) for one in parts]


def _named(names: list[str]) -> list[str]:
    """Names told apart by a number where they are the same."""
    return [
        f"{name} ({names[:at].count(name) + 1})" if names.count(name) > 1 else name
        for at, name in enumerate(names)
    ]


def _cell(report: Report, column: str) -> str:
    profile = report.profile
    if column == "findings":
        return str(len(report.findings))
    if column == "waits a step":
        return in_column(report.steps.waits_per_step) if report.steps.seen else ""
    if profile is None or not profile.steps.total:
        return ""
    if column == "step":
        return duration(profile.steps.mean)
    return percent(profile.idle / profile.steps.total)
