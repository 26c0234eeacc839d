"""What stands in for what: functions of TorchMetrics that wait, and ours that do the same without.

A replacement is written against one source text, named by its digest in ``digests.tsv``. Where the installed
version has another text, the function is left as it is: a value that is silently different would be worse
than a wait.
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
    """`make(original)` gives what stands in for `original`, the function `name` of `module`.

    Replacements of one `group` rely on each other and are used all or none. `says` is what the report says.
    """

    module: str
    name: str
    group: str
    says: str
    make: Callable[[Function], Function]

    @property
    def texts(self) -> Texts:
        """What is known of the function that it stands for."""
        return texts().get(f"{self.module.removeprefix('torchmetrics.')}:{self.name}", Texts())


REPLACEMENTS: list[Replacement] = []


def instead_of(
    place: str, says: str, group: str = ""
) -> Callable[[Callable[[Function], Function]], Callable[[Function], Function]]:
    """Register a factory: ``factory(original)`` stands in for the function at ``"module:name"``."""
    module, name = place.split(":")

    def register(make: Callable[[Function], Function]) -> Callable[[Function], Function]:
        REPLACEMENTS.append(Replacement(f"torchmetrics.{module}", name, group or place, says, make))
        return make

    return register


def digest_of(function: Function) -> str:
    """Twelve hex digits that name a function's source text; empty where there is no source to read."""
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        return ""
    return hashlib.sha256("\n".join(line.rstrip() for line in text.splitlines()).encode()).hexdigest()[:12]


class Texts(NamedTuple):
    """Digests of the source texts of one function: the first is usually that of version 1.9."""

    same: tuple[str, ...] = ()
    """Those that the replacement was written against, or that were read and found to do the same."""
    fine: tuple[str, ...] = ()
    """Those that do not wait, of a function that waits in other versions."""


@lru_cache(maxsize=1)
def texts() -> dict[str, Texts]:
    """What is known of the functions that replacements stand for, by ``"module:name"``."""
    lines = Path(__file__).with_name("digests.tsv").read_text(encoding="utf-8").splitlines()[1:]
    rows = (line.split("\t") for line in lines)
    return {place: Texts(*(tuple(one.split()) for one in digests)) for place, *digests in rows}


def needed(replacement: Replacement, original: Function | None) -> bool:
    """Whether the installed function waits: some did only in older versions."""
    return original is None or digest_of(original) not in replacement.texts.fine


def original_of(replacement: Replacement) -> Function | None:
    """The function as installed, or None where there is none of that name."""
    try:
        module = importlib.import_module(replacement.module)
    except ImportError:
        return None
    found = getattr(module, replacement.name, None)
    return found if inspect.isfunction(found) else None


@dataclass(frozen=True)
class Table:
    """The replacements that fit the installed TorchMetrics.

    `of` goes from the original to what stands in for it and what the report says of that.
    `strange` names what was not replaced because its source text is another, `strange_functions` are these.
    """

    of: dict[Function, tuple[Function, str]]
    strange: tuple[str, ...]
    strange_functions: frozenset[Function] = frozenset()


@lru_cache(maxsize=1)
def table() -> Table:
    """The table for the installed version, made once, of what :mod:`.replacements` has registered."""
    found = [(one, original) for one in REPLACEMENTS if needed(one, original := original_of(one))]
    bad = [one for one, original in found if original is None or digest_of(original) not in one.texts.same]
    groups = {one.group for one in bad}
    return Table(
        {
            original: (one.make(original), one.says)
            for one, original in found
            if original and one.group not in groups
        },
        tuple(sorted(f"{one.module}.{one.name}" for one, original in found if original and one in bad)),
        frozenset(original for one, original in found if original and one in bad),
    )
