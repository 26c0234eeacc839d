"""JSON schemas of what Gapless writes, made from the structs that are written."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from gapless.errors import UsageError
from gapless.model import Report, memory, profile, session
from gapless.model.comparison import Comparison
from gapless.model.memory import MemoryReport
from gapless.model.proof import Proof
from gapless.render import _comparison, _memory, _proof, json

_DRAFT = "https://json-schema.org/draft/2020-12/schema"


class Kind(NamedTuple):
    """A kind of document: what it is of, and whether all its fields are always there."""

    format: str
    version: int
    struct: type
    whole: bool
    written_by: str


KINDS = {
    "report": Kind(json.FORMAT, json.VERSION, Report, True, "gapless check|trace|show -f json"),
    "comparison": Kind(
        _comparison.FORMAT,
        _comparison.VERSION,
        Comparison,
        True,
        "gapless compare A B -f json",
    ),
    "proof": Kind(_proof.FORMAT, _proof.VERSION, Proof, True, "gapless compare A.py:f B.py:g -f json"),
    "memory-report": Kind(_memory.FORMAT, _memory.VERSION, MemoryReport, True, "gapless memory -f json"),
    "session": Kind(session.FORMAT, session.VERSION, session._Document, False, "gapless check -o FILE"),
    "profile": Kind(profile.FORMAT, profile.VERSION, profile._Document, False, "gapless trace -o FILE"),
    "memory": Kind(memory.FORMAT, memory.VERSION, memory._Document, False, "gapless memory -o FILE"),
}


def schema(name: str) -> dict[str, Any]:
    """The schema of the documents called `name` in `KINDS`.

    Raises:
        UsageError: there is no such kind.
    """
    kind = KINDS.get(name)
    if kind is None:
        raise UsageError(f"no document is called {name!r}: there are {', '.join(KINDS)}")
    (_, parts) = msgspec.json.schema_components([kind.struct], ref_template="#/$defs/{name}")
    for part in parts.values():
        if kind.whole and "properties" in part:  # every field is written, defaults too
            part["required"] = list(part["properties"])
    own = parts.pop(kind.struct.__name__)
    head = {"format": {"const": kind.format}, "version": {"const": kind.version}}
    properties = {**head, **{key: value for key, value in own["properties"].items() if key not in head}}
    required = ["format", "version", *(key for key in own.get("required", ()) if key not in head)]
    return {
        "$schema": _DRAFT,
        "title": f"{kind.format}, version {kind.version}",
        "description": f"What `{kind.written_by}` writes.",
        "type": "object",
        "properties": properties,
        "required": required,
        "$defs": parts,
    }
