"""An asynchronous reduction lets the host go on; checkpoints go on with another number of processes."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from metrics.ranks import SPLIT, data, feed, make, make_others, results
from metrics.test_distributed import run

import gapless.metrics as metrics


def save_three(folder: Any) -> None:
    """What three processes save; one of them has no data."""
    for i, (start, stop) in enumerate(SPLIT[3]):
        collection, more = make(), make_others()
        for metric in (collection, *more.values()):
            metric.persistent(True)
        feed(collection, more, start, stop)
        states = {name: metric.state_dict() for name, metric in {"collection": collection, **more}.items()}
        torch.save(states, folder / f"old{i}.pt")


def assert_close(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(torch.tensor(actual[name]), torch.as_tensor(value), msg=name)


@pytest.fixture(scope="module")
def results_of_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    save_three(folder)
    return run(2, folder, "later_ranks.py")


def test_one_goes_on_before_the_other_takes_part(results_of_ranks):
    preds, target = data()
    whole = {
        "accuracy": metrics.MulticlassAccuracy(4)(preds, target),
        "f1": metrics.MulticlassF1Score(4)(preds, target),
        "pearson": metrics.PearsonCorrCoef()(preds[:, 0], target.float()),
        "mean": preds[:, 0].mean(),
    }
    assert results_of_ranks[0]["apart"]["before"] == [False, False]
    for of_rank in results_of_ranks:
        assert_close(of_rank["apart"]["values"], whole)
        assert of_rank["apart"]["mine"] == 100
        kinds = [name.removesuffix("_single").removesuffix("_into_tensor") for name in of_rank["collectives"]]
        assert kinds == ["all_reduce", "all_gather", "all_reduce"]


def test_readings_come_in_order_and_afresh(results_of_ranks):
    expected = [
        [2, {"sum": 22.0, "max": 11.0}],
        [4, {"sum": 30.0, "max": 13.0}],
        [6, {"sum": 38.0, "max": 15.0}],
    ]
    assert [results["logged"] for results in results_of_ranks] == [expected, expected]


def test_later_is_as_now_for_all_that_there_is(results_of_ranks):
    collection = make()
    feed(collection, {}, 0, 24)
    whole = {name: value.tolist() for name, value in collection.compute().items()}
    for of_rank in results_of_ranks:
        assert_close(of_rank["later"], whole)
        assert_close(of_rank["now"], whole)


def test_two_go_on_from_three(results_of_ranks):
    collection, more = make(), make_others()
    feed(collection, more, 0, 24)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = results(collection, more)
    for outcome in results_of_ranks:
        rows = outcome["saved"].pop("cat")
        assert sorted(rows) == pytest.approx(sorted(whole["cat"]))
        assert_close(outcome["saved"], {name: value for name, value in whole.items() if name != "cat"})


def test_alone_it_is_as_any_reading():
    mean = metrics.MeanMetric()
    mean.update(3.0)
    assert mean.read(async_op=True).result().item() == 3.0
    assert metrics.MetricCollection(mean).read(async_op=True).result()["MeanMetric"].item() == 3.0
