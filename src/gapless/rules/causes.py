"""Remedies by where values come from: `Site.cause`."""

from __future__ import annotations

import ast
import textwrap

from gapless.model import Site, SourceLine
from gapless.rules._by_use import REMEDIES
from gapless.rules._code import Code, parse_line
from gapless.rules._places import parse_waiting_line

_RANDOM = ("rand", "randn", "randint", "randperm", "normal")
_FROM_VALUES = ("torch.tensor", "torch.as_tensor", "torch.asarray", "torch.from_numpy", "torch.frombuffer")
"""Functions that make a tensor of values that are on the CPU: their `device` means a copy, too."""


COPY_WHERE_MADE = "copy it to the GPU where it is made"
"""A change that leaves one copy of those at several lines."""


def remedy_by_cause(site: Site, lines: int = 1) -> tuple[str, str]:
    """Return what to write at `site` by where its values come from, in a sentence and in a few words; empty
    where the origin is unknown or asks for no other remedy than the operator does.

    `lines` is at how many lines values of the same origin are waited for.
    """
    cause = site.cause
    if cause is None or site.detail == "strided":
        return "", ""
    if cause.kind == "copied-back" and cause.line is not None:
        name = moved_value(cause.line)
        return (
            f"{name or 'what it copies'} was on the GPU before: {_at(cause.line)} copies it to the CPU. Keep "
            "it on the GPU, and neither copy is needed",
            f"keep {name or 'the values'} on the GPU",
        )
    if cause.kind == "unchanged":
        name = _copied_value(site)
        sure = "" if cause.certain else ", as far as a run without values can tell"
        return (
            f"{name or 'what it copies'} was the same in all {cause.steps} steps seen after the first{sure}: "
            "copy it to the GPU once, before the loop, and again only where it changes",
            f"copy {name or 'it'} to the GPU once, before the loop",
        )
    if cause.refilled:
        return (
            "its buffer is refilled in place, so that pinning alone would let the next refill overwrite a "
            "copy under way: use two pinned buffers in turn, copy with `non_blocking=True`, record an event "
            "behind each copy, and synchronize with it before that buffer is refilled",
            "two pinned buffers in turn, with events",
        )
    if cause.kind in ("made", "numpy"):
        return _advise_maker(site, lines)
    return _advise_read(site)


def _advise_maker(site: Site, lines: int) -> tuple[str, str]:
    """Return advice for a tensor made on the CPU at another line."""
    cause = site.cause
    if cause is None or cause.line is None or cause.line == site.line:
        return "", ""
    if cause.name in _FROM_VALUES:
        if lines == 1:
            return "", ""  # there it would be as many copies
        probably = ""
        if cause.source is not None:
            probably = f" Its values probably come from the GPU, by {_at(cause.source)}."
        return (
            f"`{cause.name}` at {cause.line.short} makes it on the CPU: copy it to the GPU there, once, not "
            f"wherever it is used.{probably}".rstrip("."),
            COPY_WHERE_MADE,
        )
    draws = cause.name.rpartition(".")[2] in _RANDOM
    other = ", which draws other random numbers" if draws else ""
    return (
        f"`{cause.name}` at {cause.line.short} makes it on the CPU: make it on the GPU there, with "
        f"`device=`{other}",
        f"make it on the GPU with `device=` ({cause.line.short})",
    )


def _advise_read(site: Site) -> tuple[str, str]:
    """Return advice for a read of an element in a loop, or of an index into a table on the CPU."""
    cause = site.cause
    if cause is not None and cause.kind == "element" and cause.line is not None:
        walked = _walked_value(cause.line)
        values = f"`{walked}.tolist()`" if walked else "`tolist()` of the whole tensor"
        return (
            f"the loop at {cause.line.short} reads the elements one by one: read all at once before "
            f"it, with {values}",
            REMEDIES["element"].change,
        )
    if cause is not None and cause.kind == "cpu-table":
        code = parse_waiting_line(site)
        subscript = code.only_subscript() if code is not None else None
        table = code.text(subscript.value) if code is not None and subscript is not None else ""
        index = code.text(subscript.slice) if code is not None and subscript is not None else ""
        if not table or not index.isidentifier():
            return (
                "the indexed tensor is on the CPU: move it to the GPU once, before the loop, and select "
                "there with `index_select`; or keep the index as a number on the CPU",
                "move the table to the GPU once",
            )
        return (
            f"`{table}` is on the CPU: move it to the GPU once, before the loop (`{table} = "
            f"{table}.to({index}.device)`), and select there: `{table}.index_select(0, "
            f"{index}.reshape(1)).squeeze(0)`; or keep `{index}` as a number on the CPU",
            f"move `{table}` to the GPU once",
        )
    return "", ""


def _at(line: SourceLine) -> str:
    """Return the call of a line that copies to the CPU, or all of it, and its place."""
    code = parse_line(line.code)
    call = code.only_call("cpu") if code is not None else None
    return f"`.cpu()` at {line.short}" if call is not None else f"`{line.code}` at {line.short}"


def moved_value(line: SourceLine) -> str:
    """Return what a line copies to the CPU, quoted; "" if its source does not say."""
    code = parse_line(line.code)
    return _subject(code, "cpu", "to") if code is not None else ""


def _copied_value(site: Site) -> str:
    """Return what the user's line copies to the GPU, quoted."""
    code = parse_waiting_line(site)
    return _subject(code, "to", "cuda") if code is not None else ""


def _subject(code: Code, *methods: str) -> str:
    call = code.only_call(*methods)
    if call is None or not isinstance(call.func, ast.Attribute):
        return ""
    return f"`{subject}`" if (subject := code.subject(call)) else ""


def _walked_value(line: SourceLine) -> str:
    """Return the tensor that the loop at a line walks over; "" if the line does not show it."""
    try:
        tree = ast.parse(textwrap.dedent(line.code) + (" pass" if line.code.endswith(":") else ""))
    except SyntaxError:
        return ""
    loops = [node.iter for node in ast.walk(tree) if isinstance(node, (ast.For, ast.comprehension))]
    if len(loops) != 1:
        return ""
    (walked,) = loops
    if isinstance(walked, ast.Call) and isinstance(walked.func, ast.Name) and walked.func.id == "enumerate":
        walked = walked.args[0] if walked.args else walked
    return ast.unparse(walked) if isinstance(walked, (ast.Name, ast.Attribute)) else ""
