"""What profiles say of operators: by hand, and beside an independent count of public profiles."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_builder import Trace, training

from gapless.analyze.evidence import (
    COLUMNS,
    CallCounts,
    add_counts,
    count_signatures,
    format_lines,
    read_arguments,
    reduce_arguments,
)
from gapless.commands import main
from gapless.trace.read import read

SHARED = Path(__file__).resolve().parents[3] / "shared"
PUBLIC = (
    "HolisticTraceAnalysis-amd_trace-mi250",
    "HolisticTraceAnalysis-critical_path-alexnet",
    "TraceLens-h100-gaunernst",
    "TraceLens-mi300-gaunernst",
    "param-dlrm_kineto-worker0",
    "torchrec-log-resnet18-pid85866",
)
"""Small profiles of several makers, GPUs and ages."""


def rows(text: str) -> dict[str, dict[str, str]]:
    return {row["op"]: row for row in csv.DictReader(text.splitlines(), delimiter="\t")}


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
@pytest.mark.parametrize("dialect", ["new", "middle", "old"])
def test_calls_waits_and_copies(dialect: Any, vendor: Literal["nvidia", "amd"], tmp_path: Path) -> None:
    """Of the outermost operators; one that calls no driver is not there, nor what is around operators."""
    trace = training(dialect, steps=3, vendor=vendor)
    trace.operator("aten::view", 700, 5)
    with trace.span("operator", "my::operator", 710, 80), trace.span("operator", "aten::index", 715, 60):
        trace.operator("aten::nonzero", 720, 50)
        trace.copy("DtoH (Device -> Pageable)", 725, 5, copy=(730, 2), bytes=8)
        trace.wait(735, 10)
        trace.wait(750, 10)
    table_rows = rows("\n".join(format_lines(add_counts([count_signatures(trace.timeline(), {})]))))
    assert list(table_rows) == ["aten::index", "aten::item", "aten::linear", "aten::to"]
    counts = {op: tuple(int(cells[name]) for name in COLUMNS[4:10]) for op, cells in table_rows.items()}
    blocks = vendor == "amd"  # its copies are made by a call that waits
    assert counts["aten::index"] == (1, 1, 2 + blocks, 0, 1, 1)
    assert counts["aten::item"] == (3, 3, 3 + 3 * blocks, 0, 3, 1)
    assert counts["aten::linear"] == (3, 0, 0, 0, 0, 1)
    assert counts["aten::to"] == (3, 3 * blocks, 3 * blocks, 3, 0, 1)


def test_arguments_are_those_of_the_file(tmp_path: Path) -> None:
    trace = Trace(gpu="NVIDIA H100")
    args = {"Input Dims": [[640, 32], []], "Input type": ["float", "Scalar"], "Concrete Inputs": ["", "640"]}
    trace.operator("aten::add", 5, 20, **args)
    trace.launch("add", 10, kernel=(30, 40))
    path = trace.write(tmp_path / "trace.json")
    for shapes, dims, values in ((True, [[640, 32], []], ["", "640"]), (False, [[2, 3], []], ["", ""])):
        ((called, counts),) = count_signatures(read(path), read_arguments(path), shapes).items()
        assert counts == CallCounts(1, profiles=1)
        assert (json.loads(called.dims), json.loads(called.concrete)) == (dims, values)
        assert (json.loads(called.types), called.gpu) == (["float", "Scalar"], "NVIDIA H100")


DIMS = st.lists(st.lists(st.integers(0, 10**6), max_size=5), max_size=4)


@given(DIMS, st.lists(st.integers(-(10**6), 10**6).map(str)))
def test_other_sizes_that_are_alike_where_they_were(dims: list[list[int]], values: list[str]) -> None:
    given_sizes = [size for dim in dims for size in dim]
    reduced, _, plain = reduce_arguments("aten::add", dims, None, values)
    sizes = [size for dim in reduced for size in dim]
    assert [len(dim) for dim in reduced] == [len(dim) for dim in dims]
    assert all((a < 2 and a == b) or (a > 1 and b > 1) for a, b in zip(given_sizes, sizes, strict=True))
    assert len(set(zip(given_sizes, sizes, strict=True))) == len(set(given_sizes)) == len(set(sizes))
    assert max(sizes, default=0) <= len(set(given_sizes)) + 1
    assert plain == [value if abs(int(value)) < 20 else "" for value in values]


@given(st.lists(st.integers(1, 500), min_size=1, max_size=4))
def test_of_a_copy_the_number_of_bytes_is_kept_to_a_factor_of_two(dims: list[int]) -> None:
    numbers = 1
    for size in dims:
        numbers *= size
    ((kept,), *_) = reduce_arguments("aten::copy_", [dims], None, None)
    product = 1
    for size in kept:
        product *= size
    assert product <= numbers < 2 * product


def test_public_profiles_say_what_was_counted_independently() -> None:
    counted = SHARED / "truth" / "signatures.tsv.gz"
    if not counted.exists():
        pytest.skip("no public profiles")
    with gzip.open(counted, "rt", encoding="utf-8") as text:
        table = csv.DictReader(text, delimiter="\t", quoting=csv.QUOTE_NONE)
        published = {
            tuple(row[name] for name in COLUMNS[:4]): [int(row[c]) for c in COLUMNS[4:10]] for row in table
        }
    paths = [path for start in PUBLIC for path in sorted((SHARED / "traces").glob(f"{start}*"))]
    every = [count_signatures(read(path), read_arguments(path), shapes=True) for path in paths]
    totals = add_counts(
        {called._replace(gpu=""): counts for called, counts in counts_by_signature.items()}
        for counts_by_signature in every
    )
    assert len(totals) > 150
    exact = 0
    for called, counts in totals.items():
        expected = published[tuple(called)[:4]]
        assert all(a <= b for a, b in zip(counts, expected, strict=True))
        if counts.profiles == expected[5]:
            assert list(counts) == expected
            exact += 1
    assert exact > 20


def test_the_command_prints_or_saves_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = training(steps=3).write(tmp_path / "trace.json")
    assert main(["trace", "--evidence", str(path)]) == 0
    out, err = capsys.readouterr()
    assert (list(rows(out)), err) == (["aten::item", "aten::linear", "aten::to"], "")
    saved = tmp_path / "waits.tsv"
    assert main(["trace", "--evidence", "-o", str(saved), str(path), str(path)]) == 0
    assert list(rows(saved.read_text())) == list(rows(out))
    assert main(["trace", "--with-shapes", str(path)]) == 2
    assert main(["trace", "--evidence", "-"]) == 2
    assert main(["trace", "--evidence", str(tmp_path / "none.json")]) == 3
    lines_said = capsys.readouterr().err.splitlines()
    assert len(lines_said) == 3
