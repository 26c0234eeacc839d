"""Choose a remedy by what the value that is read is for: `REMEDIES` has a row for each kind of use.

What is needed at once comes first, and is never read "every N steps"; that is said only where every use is
known and only shows the value. At most two remedies are given, the nearest use of each kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gapless.model import Site, Use
from gapless.model.use import UseKind
from gapless.rules import _needed_at_once as at_once
from gapless.rules import _needed_later as later
from gapless.rules._code import Code
from gapless.rules._read_value import ReadValue

_MAX_REMEDIES = 2
"""Remedies in one advice: more is not read."""
_KEPT: frozenset[UseKind] = frozenset({"accumulator", "append", "dict", "best"})
"""Uses that keep the value for later: what is done with it then needs no remedy of its own."""
_AFTERWARDS: frozenset[UseKind] = frozenset({"show", "numpy", "unused", "checkpoint"})
"""Uses of what was kept."""


class UseRemedy(NamedTuple):
    """The remedy of one kind of use.

    `advise` returns it in the user's names, `change` says it in a few words, and `reads_once` says that after
    it what was read many times is read once, at the end or before the loop.
    """

    advise: Callable[[ReadValue, Use], str]
    change: str
    reads_once: bool = False


REMEDIES: dict[UseKind, UseRemedy] = {
    "element": UseRemedy(at_once.advise_element, "read all elements at once, before the loop", True),
    "slice": UseRemedy(at_once.advise_slice, "mask instead of slicing, or keep lengths on the CPU"),
    "size": UseRemedy(at_once.advise_size, "take the size from what the CPU knows"),
    "range": UseRemedy(at_once.advise_range, "loop up to a number that the CPU knows"),
    "index": UseRemedy(at_once.advise_index, "select with a mask or `index_select`, not a GPU number"),
    "key": UseRemedy(at_once.advise_key, "read all keys at once"),
    "environment": UseRemedy(at_once.advise_environment, "run several environments in a batch"),
    "count": UseRemedy(later.advise_count, "count on the GPU instead of selecting"),
    "empty": UseRemedy(at_once.advise_emptiness, "leave out the check for an empty selection"),
    "selection": UseRemedy(at_once.advise_selection, "replace the selection by its mask"),
    "condition": UseRemedy(at_once.advise_condition, "choose on the GPU with `torch.where`"),
    "stop": UseRemedy(at_once.advise_stop, "stop the loop by an earlier value (`read_later`)"),
    "finite": UseRemedy(
        later.advise_finiteness, "collect the check on the GPU, look at it a step later", True
    ),
    "check": UseRemedy(later.advise_check, "check on the GPU, or look at it a step later"),
    "best": UseRemedy(later.advise_best, "keep the best on the GPU, read it at the end", True),
    "tensor": UseRemedy(later.advise_tensor, "compute with the tensor itself, not its number"),
    "accumulator": UseRemedy(later.advise_sum, "sum up on the GPU, read the sum once", True),
    "append": UseRemedy(later.advise_list, "keep the tensors, read all at once", True),
    "dict": UseRemedy(later.advise_dict, "keep the tensors, read all at once", True),
    "show": UseRemedy(later.advise_report, "show an earlier step's value, or every N steps", True),
    "numpy": UseRemedy(later.advise_numpy, "compute in torch, or copy all at once", True),
    "checkpoint": UseRemedy(later.advise_checkpoint, "save in a thread from pinned memory, or less often"),
    "library": UseRemedy(later.advise_argument, "pass the tensor on, or an earlier step's value"),
    "returned": UseRemedy(later.advise_kept, "return the tensor, read it where a number is needed"),
    "stored": UseRemedy(later.advise_kept, "keep the tensor, read it where a number is needed"),
    "undecided": UseRemedy(later.advise_unfollowed, "keep the tensor up to where a number is needed"),
    "timing": UseRemedy(later.advise_timing, "measure with CUDA events"),
    "unused": UseRemedy(later.advise_deletion, "delete the read"),
}
"""The remedy of each kind of use, in the order in which they are given."""

READ_ONCE: frozenset[str] = frozenset(remedy.change for remedy in REMEDIES.values() if remedy.reads_once)
"""Changes after which what was read many times is read once."""


def advise_by_use(site: Site, code: Code | None) -> str:
    """Return what to write instead of the read at `site`, in the line `code`; "" if its uses are unknown."""
    read = ReadValue.at(site, code)
    texts = [REMEDIES[use.kind].advise(read, use) for use in leading_uses(site)]
    return "; ".join(dict.fromkeys(text for text in texts if text))


def change_by_use(site: Site) -> str:
    """Return the same in a few words: of the use that matters most; "" if the uses are unknown."""
    return next((REMEDIES[use.kind].change for use in leading_uses(site)), "")


def advise_selection(site: Site, code: Code | None, own: str) -> str:
    """Return what to write instead of a selection: `own` where its rows are used, otherwise by its uses."""
    if not _rows_are_used(site):
        return advise_by_use(site, code) or own
    empty = next((use for use in site.uses if use.kind == "empty"), None)
    return f"{own}; {at_once.advise_emptiness(ReadValue.at(site, code), empty)}" if empty is not None else own


def change_selection(site: Site) -> str:
    """Return the same in a few words; "" where the rows of the selection are used."""
    return "" if _rows_are_used(site) else change_by_use(site)


def _rows_are_used(site: Site) -> bool:
    """Whether more of a selection is used than its number of rows, or its uses are unknown."""
    kinds = {use.kind for use in site.uses}
    return not kinds or ("selection" in kinds and "element" not in kinds)


def is_only(site: Site, *kinds: UseKind) -> bool:
    """Whether the uses are known and all of these kinds."""
    return bool(site.uses) and {use.kind for use in site.uses} <= set(kinds)


def leading_uses(site: Site) -> list[Use]:
    """Return the nearest use of each of the kinds that the advice is about."""
    kinds = {use.kind for use in site.uses}
    if "element" in kinds:  # once the loop has numbers, nothing that it does with them waits
        kinds &= {"element", "index"}
    sums = {(use.file, use.line) for use in site.uses if use.kind == "accumulator"}
    if all((use.file, use.line) in sums for use in site.uses if use.kind == "append"):
        kinds -= {"append"}  # of a list's element
    if kinds & _KEPT:
        kinds -= _AFTERWARDS
    if len(kinds) > 1:
        kinds -= {"unused"}
    ordered = [next(use for use in site.uses if use.kind == kind) for kind in REMEDIES if kind in kinds]
    return ordered[:_MAX_REMEDIES]
