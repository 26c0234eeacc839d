"""The report as one line of JSON: the last line of standard output, so that ``tail -n 1`` finds it.

Every field is there, defaults too. `version` changes when a field changes its meaning or goes away.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from gapless.model import Report
from gapless.render._style import Style

FORMAT = "gapless-report"
VERSION = 1


def render(report: Report, style: Style) -> str:
    """`report` as a JSON object in one line; `style` only says which characters may be used."""
    document = {"format": FORMAT, "version": VERSION, **plain(report)}
    return json.dumps(document, ensure_ascii=not style.unicode, separators=(",", ":")) + "\n"


def plain(value: Any) -> Any:
    """`value` as dictionaries and lists. Structs leave out their defaults when encoded; here they stay."""
    if isinstance(value, msgspec.Struct):
        return {field: plain(getattr(value, field)) for field in value.__struct_fields__}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return value
