"""The table of waits: which operator makes the host wait for a CUDA device, when, how often and why.

The table itself is data (``waits.tsv`` beside this file); docs/waits.md explains its columns and its origin.
Reading it needs no torch.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal, get_args

import msgspec

from gapless.model.event import Mechanism, Site

Scope = Literal["op", "call", "node"]
COLUMNS = ("scope", "name", "when", "waits", "mechanism", "reason", "source", "read_in", "evidence")
PATH = Path(__file__).with_name("waits.tsv")

_DETAILS = {
    "host-indices": "index",
    "put-host-indices": "index",
    "put-host-value": "value",
    "put-device-indices": "index",
    "host-scalars-in-where": "value",
    "host-probabilities": "pageable",
    "sparse-factors": "sparse",
    "pairs-to-device": "pageable",
    "pairs-to-host": "pageable",
}
"""`Site.detail` by a row's condition: the kind of copied value, or of the factors."""


class WaitCondition(msgspec.Struct, frozen=True):
    """One condition under which the host waits.

    `scope` says what `name` is: ``op`` an operator (``aten::x`` or ``aten::x.overload``), ``call`` a
    Python callable by its dotted path, ``node`` an autograd node by its class name. `when` names a
    predicate. `waits` is the number of waits each time the predicate holds. Inside a call that has rows only
    its rows count: the reads of its CPU path say nothing about CUDA, and 0 means that CUDA does not wait.
    `source` is a file and a function of PyTorch, and `read_in` the version of torch in which it was read.
    `evidence` cites profiles of real GPUs: ``seen N of M: …`` calls that met the condition and waited so,
    ``seen in …, the same code``, ``unseen; …`` calls without the condition
    that had no such wait, or ``source``.
    """

    scope: Scope
    name: str
    when: str
    waits: int
    mechanism: Mechanism
    reason: str
    source: str
    read_in: str = ""
    evidence: str = "source"

    @property
    def basis(self) -> str:
        """The source this row rests on; "" if a profile of a real GPU has shown the wait."""
        return "" if self.evidence.startswith("seen ") else self.source

    @property
    def known_from(self) -> str:
        """The evidence: ``seen 24 of 24: A100``, or the PyTorch source."""
        if not self.basis:
            return self.evidence
        unseen = "" if self.evidence == "source" else f" ({self.evidence})"
        torch = "an older torch" if self.read_in == "older" else f"torch {self.read_in}"
        return f"{torch}, {self.source}{unseen}"

    @property
    def detail(self) -> str:
        """`Site.detail` of its waits, which tells them apart from others of the mechanism."""
        return _DETAILS.get(self.when, "")

    def site(self) -> Site:
        """Return a site of this wait without a source line."""
        operator = self.name if self.scope == "call" else self.name.partition(".")[0]
        call = self.name.removeprefix("torch.") if self.scope == "call" else ""
        return Site(operator=operator, mechanism=self.mechanism, call=call, detail=self.detail)


class WaitsTable(msgspec.Struct, frozen=True):
    """The rows, indexed by operator, call and autograd node."""

    rows: tuple[WaitCondition, ...]
    index: dict[tuple[str, str], tuple[WaitCondition, ...]]

    def for_op(self, qualified_name: str, overload: str = "") -> tuple[WaitCondition, ...]:
        """Return the rows for the operator ``aten::x`` with that overload ("" and "default" are the unnamed
        one).

        Rows that name no overload hold for all of them. Variants of one operator, which work in place
        (``x_``), write into an output argument (``x.y_out``) or neither, run the same code: a wait in one of
        them is a wait in all.
        """
        rows = self.index.get(("op", qualified_name), ())
        if overload and overload != "default":
            rows += self.index.get(("op", f"{qualified_name}.{overload}"), ())
        matching = {(row.when, row.mechanism): row for row in rows}
        for family in (_family_key(qualified_name), _family_key(qualified_name, overload or "default")):
            for row in self.index.get(("op", family), ()):
                matching.setdefault((row.when, row.mechanism), row)
        return tuple(matching.values())

    def for_call(self, dotted: str) -> tuple[WaitCondition, ...]:
        """Return the rows for the Python callable with that dotted path."""
        return self.index.get(("call", dotted), ())

    def for_node(self, name: str) -> tuple[WaitCondition, ...]:
        """Return the rows for the autograd node of that class (``ProdBackward0``): waits that no operator
        shows."""
        return self.index.get(("node", name), ())

    def calls(self) -> dict[str, tuple[WaitCondition, ...]]:
        """Return the rows by the dotted path of their Python callable."""
        return {name: rows for (scope, name), rows in self.index.items() if scope == "call"}


@cache
def waits_table() -> WaitsTable:
    """Return the table that comes with Gapless."""
    return parse(PATH.read_text(encoding="utf-8"), str(PATH))


def parse(text: str, name: str = "waits.tsv") -> WaitsTable:
    """Parse the table in `text`.

    Raises:
        ValueError: a malformed row; the message names file and line.
    """
    rows: list[WaitCondition] = []
    header: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        cells = tuple(line.split("\t"))
        where = f"{name}:{number}"
        if not header:
            if cells != COLUMNS:
                raise ValueError(f"{where}: the first row must be the columns {', '.join(COLUMNS)}")
            header = cells
            continue
        rows.append(_parse_row(cells, where))
    if not header:
        raise ValueError(f"{name}: no header row")
    return WaitsTable(rows=tuple(rows), index=_index_rows(rows))


def _parse_row(cells: tuple[str, ...], where: str) -> WaitCondition:
    if len(cells) != len(COLUMNS):
        raise ValueError(
            f"{where}: {len(cells)} columns where {len(COLUMNS)} are expected (separated by tabs)"
        )
    empty = [column for column, cell in zip(COLUMNS, cells, strict=True) if not cell or cell != cell.strip()]
    if empty:
        raise ValueError(f"{where}: {empty[0]} is empty or has spaces around it")
    scope, name, when, waits, mechanism, reason, source, read_in, evidence = cells
    if scope not in get_args(Scope):
        raise ValueError(f"{where}: scope {scope!r} must be one of {', '.join(get_args(Scope))}")
    if scope == "op" and not name.startswith("aten::"):
        raise ValueError(f"{where}: an operator's name starts with aten::, not {name!r}")
    if scope == "call" and "." not in name:
        raise ValueError(f"{where}: a call is named by its dotted path, not {name!r}")
    if not waits.isdigit():
        raise ValueError(f"{where}: waits must be a whole number, not {waits!r}")
    if mechanism not in get_args(Mechanism):
        raise ValueError(f"{where}: mechanism {mechanism!r} must be one of {', '.join(get_args(Mechanism))}")
    return msgspec.convert(
        {
            "scope": scope,
            "name": name,
            "when": when,
            "waits": int(waits),
            "mechanism": mechanism,
            "reason": reason,
            "source": source,
            "read_in": read_in,
            "evidence": evidence,
        },
        WaitCondition,
    )


def _index_rows(rows: list[WaitCondition]) -> dict[tuple[str, str], tuple[WaitCondition, ...]]:
    """Index rows by scope and name, and operators also by family."""
    index: dict[tuple[str, str], list[WaitCondition]] = {}
    for row in rows:
        index.setdefault((row.scope, row.name), []).append(row)
        if row.scope == "op":
            name, _, overload = row.name.partition(".")
            index.setdefault((row.scope, _family_key(name, overload)), []).append(row)
    return {key: tuple(value) for key, value in index.items()}


def _family_key(name: str, overload: str = "") -> str:
    """Return a key shared by an operator and its in-place and out variants; no operator has such a name."""
    kind = overload.removesuffix("out").removesuffix("_")
    return f"{name.removesuffix('_')} {kind or 'default' if overload else ''}"
