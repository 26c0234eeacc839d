"""JSON schemas of the documents that Gapless writes, derived from their structs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from rich.text import Text

from gapless.errors import UsageError
from gapless.model import Report, loading, memory, profile, session
from gapless.render import json
from gapless.render._canvas import Canvas
from gapless.render._style import Style

_DRAFT = "https://json-schema.org/draft/2020-12/schema"


class Kind(NamedTuple):
    """A kind of document; `whole` says that default values are written, too."""

    format: str
    version: int
    struct: type
    whole: bool
    written_by: str


KINDS = {
    "report": Kind(json.FORMAT, json.VERSION, Report, True, "every command with -f json"),
    **{
        name: Kind(saved.format, saved.version, saved.document, False, command)
        for name, saved, command in (
            ("loader", loading.SAVED, "gapless loader -o FILE"),
            ("session", session.SAVED, "gapless check -o FILE"),
            ("profile", profile.SAVED, "gapless trace -o FILE"),
            ("memory", memory.SAVED, "gapless memory -o FILE"),
        )
    },
}


def listing(style: Style) -> str:
    """Render the kinds of documents, with the commands that write them."""
    canvas = Canvas(style)
    for name, kind in KINDS.items():
        canvas.hang(Text(f"{name:<15} version {kind.version}   "), Text(kind.written_by))
    return canvas.text()


def schema(name: str) -> dict[str, Any]:
    """Return the JSON schema of the kind of document `name`, a key of `KINDS`.

    Raises:
        UsageError: there is no such kind.
    """
    kind = KINDS.get(name)
    if kind is None:
        raise UsageError(f"no document is called {name!r}: there are {', '.join(KINDS)}")
    (_, parts) = msgspec.json.schema_components([kind.struct], ref_template="#/$defs/{name}")
    rows = dict(_rows(msgspec.inspect.type_info(kind.struct)))
    for part in parts.values():
        if "description" in part:  # a docstring, whose indentation Python keeps until 3.13
            part["description"] = inspect.cleandoc(part["description"])
        if kind.whole and "prefixItems" in part:  # an array in saved files, an object in documents
            _name_fields(part, rows[part["title"]])
        if kind.whole and "properties" in part:  # every field is written, defaults too
            part["required"] = list(part["properties"])
    own = parts.pop(kind.struct.__name__)
    if kind.struct is Report:
        own = _as_written(own, parts)
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


def _as_written(own: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a report as `gapless.render.json.content` writes it: verdict first, no tables."""
    first = dict(parts["Verdict"]["properties"])
    rest = {key: value for key, value in own["properties"].items() if key not in ("verdict", "tables")}
    for name in ("Table", "Column", "Row"):
        parts.pop(name, None)
    properties = {"verdict": first.pop("sentence"), **first, **rest}
    return {**own, "properties": properties, "required": list(properties)}


def _rows(info: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the name and field names of each struct inside the type `info` that is saved as an array."""
    left, known_types = [info], set()
    while left:
        info_type = left.pop()
        if isinstance(info_type, msgspec.inspect.StructType):
            if info_type.cls in known_types:
                continue
            known_types.add(info_type.cls)
            if info_type.array_like:
                yield info_type.cls.__name__, tuple(field.name for field in info_type.fields)
            left += [field.type for field in info_type.fields]
        else:  # of a list its items, of a dictionary its keys and values, of a union its types
            names = ("item_type", "item_types", "key_type", "value_type", "types")
            below = [getattr(info_type, name) for name in names if hasattr(info_type, name)]
            left += [part for item in below for part in (item if isinstance(item, tuple) else (item,))]


def _name_fields(part: dict[str, Any], names: tuple[str, ...]) -> None:
    """Turn `part`, the schema of an array, into that of an object with the fields `names`."""
    part["properties"] = dict(zip(names, part.pop("prefixItems"), strict=True))
    part["type"] = "object"
    part.pop("minItems", None)
    part.pop("maxItems", None)
