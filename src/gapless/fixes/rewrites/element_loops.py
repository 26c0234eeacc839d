"""``for t in tensor: f(t.item())`` reads all elements at once: ``for t in tensor.tolist()``."""

from __future__ import annotations

import ast

from gapless.fixes.editing.editable import OtherForm, Refused
from gapless.fixes.editing.numbers_read import read_at
from gapless.fixes.editing.places import Draft, FixPlace
from gapless.fixes.editing.variables import has_own
from gapless.uses.source_files import SourceFile, called_name, root_name
from gapless.uses.unseen import changes_in_place

CODES = ("GAP101", "GAP109", "GAP105")
ORDER = 5  # before sums: one read for all elements is better than none for each


def write(place: FixPlace) -> Draft:
    """Return the change of a read of the elements that a loop walks over."""
    if all(use.kind != "element" for use in place.site.uses):
        raise OtherForm("it is no element of a loop")
    read, file, source = read_at(place), place.file, place.file.source
    if not isinstance(read.subject, ast.Name) or read.tensor.shape:
        raise OtherForm("it is no element of a loop")
    name = read.subject.id
    walk = _walk(source, read.call, name)
    if walk is None:
        raise Refused(f"how the loop walks to `{name}` is not clear")
    loop, walked = walk
    called = {called_name(node) for node in ast.walk(loop) if isinstance(node, ast.Call)}
    functions = [function for each in called for function in source.functions.get(each, ())]
    if any(changes_in_place(source, scope, root_name(walked)) for scope in (loop, *functions)):
        raise Refused(f"`{source.text(walked)}` is changed within the loop")
    edits = [file.edit(file.span(walked)[1], file.span(walked)[1], ".tolist()")]
    if not isinstance(walked, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        edits = [file.replace(walked, f"({file.text(walked)}).tolist()")]
    scope = source.scope(loop) if isinstance(loop, ast.For) else loop
    for node in ast.walk(scope):
        if not isinstance(node, ast.Name) or node.id != name or has_own(source, node, scope):
            continue
        if source.scope(node) is not source.scope(loop):
            raise Refused(f"`{name}` is used in another function at line {node.lineno}")
        if isinstance(node.ctx, ast.Store) and any(node is each for each in ast.walk(loop)):
            continue
        parent = source.parents[node]
        call = source.parents.get(parent)
        if isinstance(parent, ast.Attribute) and parent.attr == "item" and isinstance(call, ast.Call):
            edits.append(file.replace(call, name))
        elif not (isinstance(parent, ast.Call) and called_name(parent) in ("int", "float")):
            raise Refused(f"`{name}` is also used as a tensor at line {node.lineno}")
    return Draft(f"read all of `{source.text(walked)}` at once", tuple(edits))


def _walk(file: SourceFile, node: ast.AST, name: str) -> tuple[ast.AST, ast.expr] | None:
    """Return the loop or comprehension around `node` that stores `name`, and what it takes that from."""
    for each in file.chain(node):
        if isinstance(each, ast.For):
            steps = [(each.target, each.iter)]
        elif isinstance(each, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            steps = [(generator.target, generator.iter) for generator in each.generators]
        else:
            continue
        for target, walked in steps:
            if isinstance(target, ast.Name) and target.id == name:
                return each, walked
            if isinstance(target, ast.Tuple) and isinstance(walked, ast.Call) and not walked.keywords:
                names = [getattr(element, "id", "") for element in target.elts]
                if called_name(walked) == "zip" and name in names and len(names) == len(walked.args):
                    return each, walked.args[names.index(name)]
                if called_name(walked) == "enumerate" and names[1:] == [name] and len(walked.args) == 1:
                    return each, walked.args[0]
    return None
