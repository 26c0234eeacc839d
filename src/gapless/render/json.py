"""The report as one line of JSON: the last line of standard output, so that ``tail -n 1`` finds it.

Every field is there, defaults too. `version` changes when a field changes its meaning or goes away.
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
_BEYOND = re.compile(r"[^ -~\n]")


def render(report: Report, style: Style) -> str:
    """`report` as a JSON object in one line; `style` only says which characters may be used."""
    return document(FORMAT, VERSION, content(report), style)


def content(report: Report) -> dict[str, Any]:
    """The report's fields, the verdict's first; tables are left out, whose numbers the parts hold."""
    fields = plain(report)
    verdict = fields.pop("verdict")
    del fields["tables"]
    return {"verdict": verdict.pop("sentence"), **verdict, **fields}


def document(form: str, version: int, content: dict[str, Any], style: Style) -> str:
    """`content` as a JSON object in one line, behind the `form` and `version` that tell what it is."""
    return dumped({"format": form, "version": version, **content}, style, separators=(",", ":"))


def dumped(value: Any, style: Style, **how: Any) -> str:
    """`value` as JSON, ending with a line break, in which nothing steers the terminal it may be shown on."""
    text = json.dumps(value, ensure_ascii=not style.unicode, **how)
    return (
        _BEYOND.sub(lambda match: match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1], text)
        + "\n"
    )


def plain(value: Any) -> Any:
    """`value` as dictionaries and lists. Structs leave out their defaults when encoded; here they stay."""
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return {name: plain(getattr(value, field)) for name, field in names}  # named as in what is saved
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return value
