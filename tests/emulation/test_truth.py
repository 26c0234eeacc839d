"""Signatures that profiles of real GPUs hold, called again under emulation: all agree, or have a reason.

All that waited or copied, one of each operator of the others, and all of those that the table of waits knows;
`benchmarks/truth.py` goes through all of them.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.emulation.waits.table import PATH, waits_table

MADE_OF_OTHERS = {"aten::linear", "aten::matmul"}
"""Operators that in some of their calls run one of the table's."""
BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def truth() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module("truth")
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def comparisons(truth: Any) -> list[Any]:
    signatures = list(truth.read(truth.FILE))
    moving = [signature for signature in signatures if any(signature.counts[1:5])]
    silent = [signature for signature in signatures if not any(signature.counts[1:5])]
    first = {signature.op: signature for signature in reversed(silent) if signature.arguments is not None}
    compared = list(truth.compare_signatures([*moving, *first.values()]))
    operators = MADE_OF_OTHERS | {row.name.partition(".")[0] for row in waits_table().rows}
    compared += truth.compare_signatures(
        [
            signature
            for signature in silent
            if (signature.op in operators and signature is not first.get(signature.op))
            or signature.arguments is None
        ]
    )
    return list(truth.with_operators_alone(compared))


def test_nothing_disagrees_without_a_reason(truth: Any, comparisons: list[Any]) -> None:
    wrong = [comparison.signature for comparison in truth.disagreements(comparisons) if not comparison.reason]
    assert not wrong
    called = [comparison for comparison in comparisons if not comparison.unknown]
    assert sum(comparison.signature.counts.waits for comparison in called) > 9000
    assert truth.total_calls(
        comparison for comparison in called if not comparison.decided
    ) < 0.05 * truth.total_calls(called)


def test_another_number_of_waits_disagrees(truth: Any, comparisons: list[Any]) -> None:
    index = next(
        comparison
        for comparison in comparisons
        if comparison.signature.op == "aten::nonzero" and comparison.decided
    )
    counts = index.signature.counts
    for waits in (0, counts.waits - 1, counts.waits + 1):
        changed = replace(index, signature=replace(index.signature, counts=counts._replace(waits=waits)))
        assert not changed.agrees


def test_the_table_says_what_was_seen(truth: Any, comparisons: list[Any]) -> None:
    counted = truth.evidence(comparisons)
    rows = {(row.scope, row.name, row.when): row.evidence for row in waits_table().rows}
    assert {key: rows[key] for key in counted} == counted
    assert {rows[key] for key in set(rows) - set(counted)} == {"source"}
    assert all(rows[key].split(" ")[0] in ("seen", "unseen;") for key in counted)
    text = PATH.read_text(encoding="utf-8")
    assert truth.with_evidence(text, counted) == text


@given(st.lists(st.lists(st.integers(0, 5000), max_size=4), min_size=1, max_size=3))
def test_a_smaller_signature_keeps_what_it_is(truth: Any, dims: list[list[int]]) -> None:
    types = json.dumps(["float"] * len(dims))
    signature = truth.Signature("aten::x", json.dumps(dims), types, "null", None, "?")
    small = json.loads((truth.shrink(signature) or signature).dims)
    pairs = [
        (a, b)
        for large_dims, small_dims in zip(dims, small, strict=True)
        for a, b in zip(large_dims, small_dims, strict=True)
    ]
    assert all(b == a if a <= 48 else 24 <= b < 48 for a, b in pairs)
    assert all(b == d for a, b in pairs for c, d in pairs if a == c)


def test_every_row_says_what_it_rests_on(truth: Any) -> None:
    for row in waits_table().rows:
        assert re.fullmatch(r"\d+\.\d+(\.\d+| or later)?|older", row.read_in)
        assert re.fullmatch(
            r"seen (\d+ of \d+: .+|in aten::\S+, the same code)|unseen; .+|source", row.evidence
        )
        assert row.basis == ("" if row.evidence.startswith("seen ") else row.source)
    page = truth.PAGE.read_text(encoding="utf-8")
    assert truth.with_list(page, waits_table().rows) == page
    assert truth.markdown_list(waits_table().rows) in page
