"""Follow the values that a text reads, as a check does, without running it."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from gapless.model import SourceLine, Use
from gapless.model.event import Mechanism
from gapless.model.use import Span
from gapless.uses import RunningPlace, read_uses
from gapless.uses.source_files import Project, SourceFile

SCRIPT = "script.py"


def uses_of(
    text: str,
    reader: str = "item",
    mechanism: Mechanism = "read",
    call: str = "Tensor.item",
    files: Mapping[str, str] | None = None,
) -> tuple[Use, ...]:
    """Return the uses of what the first call of `reader` in `text` reads; `files` are other files by path."""
    sources = {SCRIPT: text, **(files or {})}
    project = Project(sources.__getitem__)
    for path in sources:
        project.file(path)
    file = project.files[SCRIPT]
    assert file is not None
    return read_uses(project, [place_of(file, file.calls[reader][0])], mechanism, call).uses


def place_of(file: SourceFile, node: ast.expr) -> RunningPlace:
    """Return the place that Python gives for `node` when it runs."""
    span = Span(node.lineno, node.end_lineno or 0, node.col_offset, node.end_col_offset or 0)
    scope = file.scope(node)
    return RunningPlace(SourceLine(file.path, node.lineno, getattr(scope, "name", "<module>")), span)


def kinds_of(
    text: str, reader: str = "item", mechanism: Mechanism = "read", call: str = "Tensor.item"
) -> set[str]:
    """Return the kinds of `uses_of`."""
    return {use.kind for use in uses_of(text, reader, mechanism, call)}
