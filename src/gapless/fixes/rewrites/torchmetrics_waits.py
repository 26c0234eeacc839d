"""``unwait(metric)`` behind the line that makes a metric of TorchMetrics."""

from __future__ import annotations

import ast

from gapless.fixes.editing.editable import Refused
from gapless.fixes.editing.places import Draft, FixPlace
from gapless.uses.source_files import last_name

CODES = ("GAP141", "GAP156", "GAP157", "GAP158", "GAP159")

_IMPORT = "from gapless.metrics.torchmetrics import unwait"


def write(place: FixPlace) -> Draft:
    """Return the change of a metric that waits in its methods."""
    file, owner = place.file, _owner(place.call().func)
    text = ast.unparse(owner)
    makers = [
        (target, value)
        for target, value in file.source.assigned[last_name(owner)]
        if ast.unparse(target) == text and isinstance(target, (ast.Name, ast.Attribute))
    ]
    if len(makers) != 1:
        raise Refused(f"`{text}` is made in {len(makers) or 'no'} places of this file")
    statement = file.source.statement(makers[0][0])
    edits = (file.insert_after(statement, f"unwait({text})"), *file.import_line(_IMPORT))
    return Draft(f"take the waits out of `{text}`", edits, "rounding")


def _owner(node: ast.expr) -> ast.expr:
    """Return ``m`` of ``m``, ``m.update`` and ``m["a"].update``; ``self.m`` of ``self.m.update``."""
    while isinstance(node, (ast.Attribute, ast.Subscript)) and not (
        isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    ):
        node = node.value
    return node
