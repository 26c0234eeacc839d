"""Which calls wait, and what rule their chain of operators leads to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from trace_builder import Trace

from gapless.analyze.profile.building import build_profile
from gapless.analyze.profile.lines import HostPlace, PlaceIndex
from gapless.analyze.profile.waits import COPIED_KINDS, copied_kind, find_waits, site_of_wait
from gapless.emulation.waits.table import waits_table
from gapless.model import Site
from gapless.rules import match_rule

PAGEABLE_OUT, PAGEABLE_IN = "DtoH (Device -> Pageable)", "HtoD (Pageable -> Device)"


def sites(trace: Trace) -> list[Site]:
    """The sites of all waits that count."""
    timeline = trace.timeline()
    waits = find_waits(timeline)
    places = PlaceIndex(timeline)
    counting = []
    for row, copy, counts in zip(waits.rows, waits.copy, waits.counts, strict=True):
        if counts:
            name = timeline.names[timeline.work.name[copy]] if copy >= 0 else ""
            kind = copied_kind(timeline, int(row), int(copy))
            counting.append(site_of_wait(places.place(int(row)), name, kind))
    return counting


def _arguments(shape: list[int] | None) -> dict[str, Any]:
    """The arguments of a copy of a tensor of that shape, as a profile records them."""
    types = ["long int", "long int", "Scalar"]
    return {"Input Dims": [shape, shape, []], "Input type": types, "Concrete Inputs": ["", "", "False"]}


def chain(
    *operators: str,
    copy: str = PAGEABLE_OUT,
    sync: bool = True,
    vendor: str = "nvidia",
    size: int = 4096,
    shape: list[int] | None = None,
) -> Trace:
    """Operators one inside the other, and in the innermost a copy (of a tensor of that `shape`, if recorded)
    and what waits for it."""
    trace = Trace(vendor=vendor)
    trace.launch("work", 0, 4, kernel=(5, 100))
    for depth, name in enumerate(operators):
        recorded = shape is not None and name == "aten::copy_"
        trace.operator(name, 10 + depth, 400 - 2 * depth, **(_arguments(shape) if recorded else {}))
    if copy:
        trace.copy(copy, 100, 20, copy=(106, 10), bytes=size)
    if sync:
        trace.wait(125, 50)
    trace.launch("more", 900, 4, kernel=(905, 10))
    return trace


@pytest.mark.parametrize(
    ("operators", "copy", "code", "mechanism"),
    [
        (["aten::item", "aten::_local_scalar_dense"], PAGEABLE_OUT, "GAP101", "read"),
        (["aten::is_nonzero", "aten::item", "aten::_local_scalar_dense"], PAGEABLE_OUT, "GAP102", "read"),
        (["aten::nonzero"], PAGEABLE_OUT, "GAP110", "size"),
        (["aten::index", "aten::nonzero"], PAGEABLE_OUT, "GAP112", "size"),
        (["aten::masked_select", "aten::nonzero"], PAGEABLE_OUT, "GAP112", "size"),
        (["aten::index_put_", "aten::_index_put_impl_", "aten::nonzero"], PAGEABLE_OUT, "GAP113", "size"),
        (["aten::unique_dim"], PAGEABLE_OUT, "GAP114", "size"),
        (["aten::_unique2"], PAGEABLE_OUT, "GAP114", "size"),
        (["aten::repeat_interleave"], PAGEABLE_OUT, "GAP115", "size"),
        (["aten::bincount", "aten::item", "aten::_local_scalar_dense"], PAGEABLE_OUT, "GAP116", "read"),
        (["aten::to", "aten::_to_copy", "aten::copy_"], PAGEABLE_IN, "GAP120", "h2d"),
        (["aten::to", "aten::_to_copy", "aten::copy_"], PAGEABLE_OUT, "GAP122", "d2h"),
        (["aten::to", "aten::_to_copy", "aten::copy_"], "HtoD (Pinned -> Device)", "GAP123", "h2d"),
        (["aten::index", "aten::to", "aten::copy_"], PAGEABLE_IN, "GAP124", "h2d"),
        (["aten::linalg_inv", "aten::_linalg_check_errors"], PAGEABLE_OUT, "GAP144", "status"),
        ([], "", "GAP131", "explicit"),
    ],
)
def test_the_chain_of_operators_leads_to_the_rule(operators, copy, code, mechanism):
    (site,) = sites(chain(*operators, copy=copy))
    assert (match_rule(site).code, site.mechanism) == (code, mechanism)


WRITE = ("aten::index_put_", "aten::_index_put_impl_", "aten::to", "aten::_to_copy", "aten::copy_")


@pytest.mark.parametrize(
    ("shape", "size", "code"),
    [
        ([], 8, "GAP125"),
        ([1], 8, "GAP124"),
        ([512], 4096, "GAP124"),
        (None, 8, "GAP100"),
        (None, 4096, "GAP124"),
    ],
)
def test_what_a_write_copies_tells_the_value_from_the_index(shape, size, code):
    (site,) = sites(chain(*WRITE, copy=PAGEABLE_IN, size=size, shape=shape))
    assert match_rule(site).code == code
    if code == "GAP100":  # either is named
        assert all(name in match_rule(site).remedy(site) for name in ("index_fill_", "an index on the GPU"))


def test_a_value_and_an_index_of_one_write_are_two_waits():
    trace = Trace(with_stack=False)
    for at, shape in ((0, [4]), (1000, [])):
        trace.launch("work", at, 4, kernel=(at + 5, 100))
        for depth, name in enumerate(WRITE):
            recorded = name == "aten::copy_"
            trace.operator(name, at + 10 + depth, 400 - 2 * depth, **(_arguments(shape) if recorded else {}))
        trace.copy(PAGEABLE_IN, at + 100, 20, copy=(at + 106, 10), bytes=8)
        trace.wait(at + 125, 50)
        trace.launch("more", at + 900, 4, kernel=(at + 905, 10))
    profile = build_profile(trace.timeline())
    details = {cost.site.detail for cost in profile.costs if cost.cause == "wait" and cost.calls}
    assert details == {"index", "value"}


_READ = ("aten::item", "aten::_local_scalar_dense")
_COPY = ("aten::to", "aten::_to_copy", "aten::copy_")
READS: dict[str, list[tuple[tuple[str, ...], str]]] = {
    "read": [(_READ, PAGEABLE_OUT), (("aten::is_nonzero", *_READ), PAGEABLE_OUT)],
    "size": [(_READ, PAGEABLE_OUT), (("aten::nonzero",), PAGEABLE_OUT)],
    "values": [((), PAGEABLE_OUT), (_COPY, PAGEABLE_OUT)],
    "status": [
        (("aten::is_nonzero", *_READ), PAGEABLE_OUT),
        (("aten::_linalg_check_errors", *_READ), PAGEABLE_OUT),
    ],
    "h2d": [(_COPY, PAGEABLE_IN)],
    "d2h": [(_COPY, PAGEABLE_OUT)],
}
"""What a profile may show inside an operator that waits, by mechanism."""
_MASKED = {
    "aten::index",
    "aten::index_put",
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::_unsafe_index_put",
}
"""Operators that locate the elements of a mask, always with `nonzero`."""


def test_a_profile_names_the_same_rule_as_the_table_of_waits():
    codes: dict[str, set[str]] = {}
    rows = [row for row in waits_table().rows if row.scope == "op" and row.waits]
    for row in rows:
        codes.setdefault(row.site().operator, set()).add(match_rule(row.site()).code)
    for row in rows:
        name = row.site().operator
        for inside, copy in READS[row.mechanism]:
            if (name in _MASKED and inside == _READ) or name == "aten::_local_scalar_dense":
                continue
            operators = tuple(reversed(dict.fromkeys((name, *inside))))
            kind = row.detail if row.detail in COPIED_KINDS else ""
            site = site_of_wait(HostPlace("cudaMemcpyAsync", operators=operators), copy, kind)
            assert match_rule(site).code in codes[name], (row, inside, site)


def test_a_synchronization_of_the_device():
    trace = Trace()
    trace.launch("work", 0, 4, kernel=(5, 100))
    trace.wait(10, 95, stream=False)
    trace.launch("more", 120, 4, kernel=(126, 10))
    (site,) = sites(trace)
    assert match_rule(site).code == "GAP130"


def test_hip_calls_are_reported_in_cuda_terms():
    trace = Trace(vendor="amd")
    trace.launch("work", 0, 4, kernel=(5, 100))
    trace.wait(10, 95, stream=False)
    trace.launch("more", 120, 4, kernel=(126, 10))
    (site,) = sites(trace)
    assert site.operator == "cudaDeviceSynchronize"


def test_hips_copies_wait_without_a_synchronization():
    (site,) = sites(chain("aten::to", "aten::copy_", copy=PAGEABLE_OUT, sync=False, vendor="amd"))
    assert match_rule(site).code == "GAP122"


@pytest.mark.parametrize(("size", "rows"), [(4096, 1), (1 << 20, 2)])
def test_a_pageable_copy_and_its_synchronization_are_one_wait(size, rows):
    # A small one is staged: its call returns at once, and only the synchronization waits.
    trace = chain("aten::to", "aten::_to_copy", "aten::copy_", copy=PAGEABLE_IN, size=size)
    waits = find_waits(trace.timeline())
    assert len(waits.rows) == rows
    assert waits.counts.sum() == 1


def test_pinned_copies_that_nobody_waits_for_are_no_waits():
    assert sites(chain("aten::to", "aten::copy_", copy="HtoD (Pinned -> Device)", sync=False)) == []


def test_copies_within_the_device_are_no_waits():
    assert sites(chain("aten::copy_", copy="DtoD (Device -> Device)", sync=False)) == []


def test_launches_and_queries_are_no_waits():
    trace = Trace()
    trace.launch("work", 0, 4, kernel=(5, 100))
    trace.call("cudaEventQuery", 10, 2)
    trace.call("cudaStreamWaitEvent", 14, 2)
    trace.call("cudaEventRecord", 17, 2)
    assert sites(trace) == []


@pytest.mark.parametrize(("size", "waits"), [(4096, 0), (1 << 16, 0), (1 << 20, 1)])
def test_small_pageable_copies_to_the_device_are_staged_and_wait_for_nothing(size, waits):
    trace = Trace()
    trace.launch("work", 0, 4, kernel=(5, 100))
    trace.operator("aten::copy_", 105, 60)
    trace.copy("HtoD (Pageable -> Device)", 110, 50, copy=(130, 30), bytes=size)
    trace.launch("more", 900, 4, kernel=(905, 10))
    assert len(sites(trace)) == waits


def test_the_profilers_own_synchronization_is_recognized_by_its_caller():
    trace = Trace()
    trace.frame("train.py(3): train", 0, 2000)
    trace.launch("work", 1, 4, kernel=(6, 100))
    trace.frame("torch/profiler/profiler.py(821): step", 10, 300)
    trace.frame("torch/cuda/__init__.py(990): synchronize", 11, 200)
    trace.wait(12, 94, stream=False)
    trace.frame("torch/cuda/__init__.py(990): synchronize", 500, 200)
    trace.launch("more", 400, 4, kernel=(405, 200))
    trace.wait(510, 95, stream=False)
    trace.launch("last", 900, 4, kernel=(905, 10))
    (site,) = sites(trace)
    assert [frame.function for frame in site.stack] == ["synchronize", "train"]


def test_frames_that_ran_when_the_profiler_started_hide_no_waits():
    trace = Trace()
    trace.frame("torch/profiler/profiler.py(821): step", 0, 2000)  # recorded as if it had lasted to the end
    trace.frame("train.py(3): train", 1, 1900)
    trace.launch("work", 2, 4, kernel=(6, 100))
    trace.operator("aten::item", 10, 100)
    trace.operator("aten::_local_scalar_dense", 11, 98)
    trace.copy(PAGEABLE_OUT, 12, 96, copy=(106, 1))
    trace.launch("last", 900, 4, kernel=(905, 10))
    assert [match_rule(site).code for site in sites(trace)] == ["GAP101"]


def test_what_the_profiler_ends_with_is_not_the_programs():
    trace = Trace()
    trace.launch("work", 0, 4, kernel=(5, 100))
    trace.wait(10, 95, stream=False)
    assert sites(trace) == []


def test_a_profile_without_calls():
    trace = Trace()
    trace.kernel("alone", 5, 10)
    waits = find_waits(trace.timeline())
    assert waits.rows.dtype == np.int64
    assert len(waits.rows) == 0
