"""A bad label on one rank is the same clear error on all of them, once."""

from __future__ import annotations

import pytest
from metrics.test_distributed import run


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return run(2, tmp_path_factory.mktemp("bad_labels"), "bad_label_ranks.py")


def test_on_the_gpu_both_ranks_raise_when_the_result_is_read(ranks):
    for case in (case for case in ranks[0] if case.startswith("cuda")):
        without, with_bad = ranks[0][case], ranks[1][case]
        for errors in (without, with_bad):
            assert (errors["update"], errors["compute"]) == ("", ""), case
            assert "outside" in errors["read"], case
            assert "outside" in errors["later"], case
        assert without["read"].endswith("(in another process)"), case
        assert with_bad["read"].endswith("(first in update 1)"), case


def test_on_the_cpu_the_others_raise_at_the_next_reduction(ranks):
    for case in (case for case in ranks[0] if case.startswith("cpu")):
        without, with_bad = ranks[0][case], ranks[1][case]
        assert "outside" in with_bad["update"], case
        assert with_bad["compute"] == "", case
        assert without["update"] == "", case
        assert without["compute"].endswith("0 to 2 (in another process)"), case


def test_bad_labels_are_reported_once_and_cleared_by_reset(ranks):
    for errors_of_cases in ranks:
        for case, errors in errors_of_cases.items():
            assert (errors["again"], errors["after reset"]) == ("", ""), case
