"""Register replacements of TorchMetrics functions that wait.

A replacement is written for one source text, identified by its digest in ``digests.tsv``. If the installed
version has another text, the function is not replaced: a silently different value would be worse than a wait.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

Function = Callable[..., Any]


@dataclass(frozen=True)
class Replacement:
    """`make(original)` returns the replacement of `original`, the function `name` of `module`.

    Replacements of one `group` rely on each other: all are used or none. `says` is the note in the report.
    """

    module: str
    name: str
    group: str
    says: str
    make: Callable[[Function], Function]

    @property
    def digests(self) -> SourceDigests:
        """The known digests of the function that it replaces."""
        return load_digests().get(f"{self.module.removeprefix('torchmetrics.')}:{self.name}", SourceDigests())


REPLACEMENTS: list[Replacement] = []


def replacement_for(
    place: str, says: str, group: str = ""
) -> Callable[[Callable[[Function], Function]], Callable[[Function], Function]]:
    """Register a factory: ``factory(original)`` replaces the function at ``"module:name"``."""
    module, name = place.split(":")

    def register(make: Callable[[Function], Function]) -> Callable[[Function], Function]:
        REPLACEMENTS.append(Replacement(f"torchmetrics.{module}", name, group or place, says, make))
        return make

    return register


def digest_of(function: Function) -> str:
    """Return twelve hex digits that identify a function's source text; empty if there is no source."""
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        return ""
    return hashlib.sha256("\n".join(line.rstrip() for line in text.splitlines()).encode()).hexdigest()[:12]


class SourceDigests(NamedTuple):
    """Digests of the source texts of one function: the first is usually that of version 1.9."""

    same: tuple[str, ...] = ()
    """Texts that the replacement was written for, or that were found to do the same."""
    fine: tuple[str, ...] = ()
    """Texts that do not wait, of a function that waits in other versions."""


@lru_cache(maxsize=1)
def load_digests() -> dict[str, SourceDigests]:
    """Return the known digests of replaced functions, by ``"module:name"``."""
    lines = Path(__file__).with_name("digests.tsv").read_text(encoding="utf-8").splitlines()[1:]
    rows = (line.split("\t") for line in lines)
    return {
        place: SourceDigests(*(tuple(digest_list.split()) for digest_list in digests))
        for place, *digests in rows
    }


def is_needed(replacement: Replacement, original: Function | None) -> bool:
    """Whether the installed function waits: some did only in older versions."""
    return original is None or digest_of(original) not in replacement.digests.fine


def original_of(replacement: Replacement) -> Function | None:
    """Return the installed function, or None if there is none of that name."""
    try:
        module = importlib.import_module(replacement.module)
    except ImportError:
        return None
    function = getattr(module, replacement.name, None)
    return function if inspect.isfunction(function) else None


@dataclass(frozen=True)
class ReplacementTable:
    """The replacements that fit the installed TorchMetrics.

    `by_original` maps an original function to its replacement and the report's note. `unmatched_names` and
    `unmatched_functions` are functions that were not replaced because their source text differs.
    """

    by_original: dict[Function, tuple[Function, str]]
    unmatched_names: tuple[str, ...]
    unmatched_functions: frozenset[Function] = frozenset()


@lru_cache(maxsize=1)
def fitting_replacements() -> ReplacementTable:
    """Return the replacements that fit the installed version, from all registered ones."""
    installed = [
        (replacement, original)
        for replacement in REPLACEMENTS
        if is_needed(replacement, original := original_of(replacement))
    ]
    unmatched = [
        replacement
        for replacement, original in installed
        if original is None or digest_of(original) not in replacement.digests.same
    ]
    groups = {replacement.group for replacement in unmatched}
    return ReplacementTable(
        {
            original: (replacement.make(original), replacement.says)
            for replacement, original in installed
            if original and replacement.group not in groups
        },
        tuple(
            sorted(
                f"{replacement.module}.{replacement.name}"
                for replacement, original in installed
                if original and replacement in unmatched
            )
        ),
        frozenset(original for replacement, original in installed if original and replacement in unmatched),
    )
