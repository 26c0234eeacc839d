"""What the remedies remove besides the sync: `_BY_RULE`, `_BY_USE` and `_BY_ORIGIN` have a row for each that
is known to remove more. Every other remedy is taken to remove the wait alone.
"""

from __future__ import annotations

import ast
from typing import NamedTuple

from gapless.model import Site, Use
from gapless.model.cause import OriginKind
from gapless.model.use import NEEDED_AT_ONCE, UseKind
from gapless.rules._by_use import is_only, leading_uses
from gapless.rules._code import called_name, is_constant, parse_line
from gapless.rules._places import bare_operator, parse_waiting_line


class Superfluous(NamedTuple):
    """What goes with a sync.

    - `copy`: the copy between CPU and GPU that it waits for;
    - `check`: the operators that compute the condition that is read;
    - `operator`: the operator that waits, with `instead` in its place, over everything that it selects from;
      ``followed``: what uses its result becomes that;
    - `once`: one of the syncs of a step stays.
    """

    copy: bool = False
    check: bool = False
    operator: bool = False
    instead: str = ""
    once: bool = False


FOLLOWED = "followed"
"""`Superfluous.instead` of an operator whose result an index uses: that becomes an operator of fixed size."""
_NOTHING = Superfluous()
_COPY = Superfluous(copy=True)
_CHECK = Superfluous(copy=True, check=True)
_MASK = Superfluous(copy=True, operator=True, instead="aten::where")
_COUNT = Superfluous(copy=True, operator=True, instead="aten::sum")

_BY_RULE = {
    "GAP110": Superfluous(copy=True, operator=True, instead=FOLLOWED),
    "GAP112": _MASK,
    "GAP113": _MASK,
    "GAP115": _COPY,
    "GAP117": _COPY,
    "GAP142": _CHECK,
    "GAP143": _CHECK,
    "GAP147": _COPY,
    "GAP150": _CHECK,
}
"""What goes by the rule: no selection, no check, a size that the CPU knows."""
_BY_USE: dict[UseKind, Superfluous] = {
    "size": _COPY,
    "range": _COPY,
    "empty": _COPY,
    "tensor": _COPY,
    "unused": _COPY,
    "element": Superfluous(copy=True, once=True),
    "key": Superfluous(copy=True, once=True),
    "append": Superfluous(copy=True, once=True),
    "dict": Superfluous(copy=True, once=True),
}
"""What goes with a read by what its value is for, where nothing comes in its place: a value that is shown
later, or chosen by, still has to be copied or computed."""
_BY_ORIGIN: dict[OriginKind, Superfluous] = {
    "copied-back": _COPY,
    "unchanged": _COPY,
    "element": Superfluous(copy=True, once=True),
}
"""What goes by where the values come from. Instead of what was made on the CPU a kernel makes it."""
_SELECTIONS = ("GAP110", "GAP112")
_INDEXING = ("index_", "gather", "take", "scatter")
"""Beginnings of functions that take indices."""
_CONSTANTS = "GAP121"


def superfluous_at(site: Site, code: str, joined: bool = False) -> Superfluous:
    """Return what goes with the sync at `site` if the remedy of the rule `code` is followed.

    `joined`: the remedy keeps values on the GPU that are copied to the CPU and back.
    """
    if joined and site.mechanism == "d2h":
        return _COPY
    if site.cause is not None and site.detail != "strided" and not site.cause.refilled:
        by_origin = _BY_ORIGIN.get(site.cause.kind)
        if by_origin is not None:
            return by_origin
    if code in _SELECTIONS and site.uses and not _goes_with_its_rows(site):
        return _COUNT if is_only(site, "count") else _NOTHING
    if code == _CONSTANTS:
        return _COPY if bare_operator(site) == "where" or _is_constant_list(site) else _NOTHING
    if code in _BY_RULE:
        removed = _BY_RULE[code]
        stays = removed.instead == FOLLOWED and not all(
            _is_index(use) for use in site.uses if use.kind == "selection"
        )
        return _NOTHING if stays else removed
    return _of_uses(site) if site.mechanism == "read" and site.deciding_frame is None else _NOTHING


def _goes_with_its_rows(site: Site) -> bool:
    """Whether a mask takes the place of a selection: the CPU needs its rows, not their number."""
    kinds = {use.kind for use in site.uses}
    return "selection" in kinds and not kinds & (NEEDED_AT_ONCE - {"selection", "empty"})


def _is_index(use: Use) -> bool:
    """Whether the code of `use` says that indices are used as an index."""
    code = parse_line(use.text)
    return code is not None and any(
        isinstance(each.slice, (ast.Name, ast.Subscript, ast.Tuple))
        if isinstance(each, ast.Subscript)
        else isinstance(each, ast.Call) and called_name(each).startswith(_INDEXING)
        for each in ast.walk(code.statement)
    )


def _is_constant_list(site: Site) -> bool:
    """Whether the line makes a tensor of a list that is the same each time."""
    code = parse_waiting_line(site)
    call = code.only_call("tensor", "as_tensor", "asarray", "new_tensor") if code is not None else None
    values = call.args[0] if call is not None and call.args else None
    return isinstance(values, (ast.List, ast.Tuple)) and is_constant(values)


def _of_uses(site: Site) -> Superfluous:
    """Return what goes with a read by its uses: only what goes with all of them."""
    removals = [_BY_USE.get(use.kind, _NOTHING) for use in leading_uses(site)]
    if not removals or not all(removed.copy for removed in removals):
        return _NOTHING
    return _COPY._replace(once=any(removed.once for removed in removals))
