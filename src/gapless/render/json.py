"""Render the report as one line of JSON: the last line of standard output, so that ``tail -n 1`` finds it.

Every field is written, defaults too.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from gapless.model import Report
from gapless.render._style import Style

BESIDE = True
FORMAT = "gapless-report"
VERSION = 2
"""Rises when a field changes its meaning or is removed."""
_NOT_ASCII = re.compile(r"[^ -~\n]")


def render(report: Report, style: Style) -> str:
    """Render `report` as a JSON object in one line; `style` only decides which characters are escaped."""
    return document(FORMAT, VERSION, content(report), style)


def content(report: Report) -> dict[str, Any]:
    """Return the report's fields, the verdict's first, without tables: other fields hold their numbers."""
    fields = plain(report)
    verdict = fields.pop("verdict")
    del fields["tables"]
    return {"verdict": verdict.pop("sentence"), **verdict, **fields}


def document(form: str, version: int, content: dict[str, Any], style: Style) -> str:
    """Write `content` as a JSON object in one line that begins with the format's name and version."""
    return dump({"format": form, "version": version, **content}, style, separators=(",", ":"))


def dump(value: Any, style: Style, **how: Any) -> str:
    """Write `value` as JSON with a final line break; terminal control characters are escaped."""
    text = json.dumps(value, ensure_ascii=not style.unicode, **how)
    return (
        _NOT_ASCII.sub(lambda match: match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1], text)
        + "\n"
    )


def plain(value: Any) -> Any:
    """Return `value` as dictionaries and lists, with default values, which msgspec would omit."""
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return {name: plain(getattr(value, field)) for name, field in names}  # names as in saved files
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return value
