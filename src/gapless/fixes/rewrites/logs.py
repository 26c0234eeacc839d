"""What each step logs is logged every so many steps: less is shown, so that only the user can decide."""

from __future__ import annotations

import ast

from gapless.fixes.editing.editable import OtherForm, Refused
from gapless.fixes.editing.places import Draft, FixPlace
from gapless.fixes.editing.variables import loops_around, rare_block
from gapless.model.use import UNDECIDED, Use
from gapless.uses.source_files import called_name

CODES = ("GAP101", "GAP103", "GAP106", "GAP109", "GAP155")
ORDER = 90  # last: the others change nothing that is shown

_INTERVAL = 50
"""Steps between two logged ones, after which a sync costs next to nothing."""


def write(place: FixPlace) -> Draft:
    """Return the change of a statement that shows a value in every step."""
    file, source = place.file, place.file.source
    uses = place.site.uses
    if not uses or any(use.kind != "show" for use in uses):
        raise OtherForm(_describe(next((use for use in uses if use.kind != "show"), None)))
    statement = source.statement(place.node)
    loops = loops_around(source, statement)
    if not isinstance(statement, ast.Expr) or not loops:
        raise OtherForm("it is shown elsewhere than in the loop")
    if rare_block(source, statement, loops[0]) is not None or place.frequency.rare:
        raise Refused("it is shown in few steps: nothing is to be done")
    counter = _counter(loops[0])
    if counter is None:
        raise Refused("it is shown in every step, and the loop has no counter: log every N steps")
    indent = file.indent(statement)
    start = file.span(statement)[0]
    deeper = f"{indent}\t" if indent.endswith("\t") else f"{indent}    "
    text = f"if {counter} % {_INTERVAL} == 0:{file.newline}{deeper}"
    file.insert_after(statement, "")  # refuses where something follows on the line
    return Draft(f"log every {_INTERVAL} steps", (file.edit(start, start, text),), "suggested")


def _describe(use: Use | None) -> str:
    """Return why a value is left that is for more than to be shown."""
    if use is None or use.kind in UNDECIDED:
        return "what its value is for was not all followed"
    return f"its value is needed in another way ({use.kind}, line {use.line})"


def _counter(loop: ast.AST) -> str | None:
    """Return the name of the loop's counter."""
    if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Call):
        return None
    name = called_name(loop.iter)
    target = (
        loop.target.elts[0] if name == "enumerate" and isinstance(loop.target, ast.Tuple) else loop.target
    )
    return target.id if name in ("enumerate", "range") and isinstance(target, ast.Name) else None
