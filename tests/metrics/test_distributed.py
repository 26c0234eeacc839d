"""Several processes see what one would have seen, with one collective per kind of reduction."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import fork_server
import pytest
import torch
from metrics.ranks import feed, make, make_others, results

HERE = Path(__file__).parent


def run(ranks: int, folder: Path, script: str = "ranks.py") -> list[dict[str, Any]]:
    for done in fork_server.ranks(ranks, (str(HERE / script), str(folder)), folder):
        assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks(ranks, tmp_path):
    results_by_rank = run(ranks, tmp_path)
    collection, more = make(), make_others()
    feed(collection, more, 0, 24)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = results(collection, more)
    middle = sum(range(ranks)) / ranks
    for rank, of_rank in enumerate(results_by_rank):
        for name, value in whole.items():
            torch.testing.assert_close(torch.tensor(of_rank["all"][name]), torch.tensor(value), msg=name)
        assert of_rank["again"]["accuracy"] == pytest.approx(whole["accuracy"])
        assert of_rank["cached"] == 0
        assert of_rank["collectives"] == ["all_reduce"]
        assert (of_rank["local"], of_rank["inside"], of_rank["after"]) == (rank, middle, rank)
        assert of_rank["step"] == middle
        assert of_rank["core"] == pytest.approx(
            [sum(number**2 for number in range(ranks)) / ranks, rank**2, 1]
        )
    assert results_by_rank[0]["group"] == 5.0


def test_ranks_of_metrics_that_declare_their_states(tmp_path):
    for rank, of_rank in enumerate(run(2, tmp_path, "declared_ranks.py")):
        assert of_rank["nothing"] == []
        assert of_rank["kinds"] == [2, 1.5, 2.0, 1.0, 2.0]
        assert of_rank["kept"] == [1.0, 1.0, 1.0]
        assert of_rank["stacked"] == [3.0, 6.0]
        assert of_rank["local"] == rank + 1
        assert of_rank["together"] == of_rank["read"] == {"own": 1.0, "mean": 0.5, "sum": 2.0}
        assert of_rank["running"] == [4, 2.0, 3.0, 1.0, 12.0]
        assert of_rank["step"] == [1.0, 1.0]
        assert of_rank["collectives"] == ["all_reduce"]


def test_every_metric_over_processes_that_see_different_numbers_of_batches(tmp_path):
    assert run(2, tmp_path, "every_ranks.py") == [[], []]
