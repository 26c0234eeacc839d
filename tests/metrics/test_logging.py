"""Readings reach the loggers under their names, with the update they belong to."""

from __future__ import annotations

import copy
import csv
import sys
import types
from typing import Any

import pytest
import torch

import gapless.metrics as metrics
from gapless.metrics import logging


def collection() -> metrics.MetricCollection:
    return metrics.MetricCollection(
        {
            "accuracy": metrics.MulticlassAccuracy(3, average="micro"),
            "recall": metrics.MulticlassRecall(3, average="none"),
        }
    )


def run(logger: Any, updates: int = 4) -> metrics.MetricCollection:
    """`updates` updates, of which the i-th has i right predictions of class 0 among four; logged by twos."""
    scores = collection()
    scores.every(2, logger, reset=True)
    for i in range(updates):
        scores.update(torch.tensor([0] * i + [1] * (4 - i)), torch.zeros(4, dtype=torch.long))
    return scores


ROWS = [
    {"update": 2, "accuracy": 0.125, "recall/0": 0.125, "recall/1": 0.0, "recall/2": 0.0},
    {"update": 4, "accuracy": 0.625, "recall/0": 0.625, "recall/1": 0.0, "recall/2": 0.0},
]


def read(path: Any) -> list[dict[str, float]]:
    with open(path, newline="") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def test_csv(tmp_path):
    run(logging.CSV(tmp_path / "run" / "scores.csv"))
    assert read(tmp_path / "run" / "scores.csv") == ROWS


def test_csv_is_continued_in_its_own_order(tmp_path):
    path = tmp_path / "scores.csv"
    logging.CSV(path)(1, {"b": 1, "a": torch.tensor(2.0)})
    logging.CSV(path)(2, {"a": 3.0, "b": torch.tensor(4)})
    assert read(path) == [{"update": 1, "b": 1, "a": 2}, {"update": 2, "b": 4, "a": 3}]
    with pytest.raises(ValueError, match=r"columns \['update', 'b', 'a'\], but .* \['update', 'a', 'c'\]"):
        logging.CSV(path)(3, {"a": 3.0, "c": 1.0})
    assert len(read(path)) == 2


def test_tensorboard_with_a_writer():
    calls = []
    writer = types.SimpleNamespace(add_scalar=lambda *call: calls.append(call))
    run(logging.TensorBoard(writer))
    assert calls == [(name, row[name], row["update"]) for row in ROWS for name in row if name != "update"]


def test_tensorboard_makes_its_writer(monkeypatch, tmp_path):
    folders = []
    module: Any = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = folders.append
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    logging.TensorBoard(tmp_path)
    logging.TensorBoard()
    assert folders == [str(tmp_path), None]


class Run:
    """A run of Weights & Biases."""

    def __init__(self) -> None:
        self.axes: list[tuple[str, str]] = []
        self.rows: list[dict[str, float]] = []

    def define_metric(self, name: str, step_metric: str) -> None:
        self.axes.append((name, step_metric))

    def log(self, row: dict[str, float]) -> None:
        self.rows.append(row)


def test_weights_and_biases(monkeypatch):
    module: Any = types.ModuleType("wandb")
    module.run = None
    monkeypatch.setitem(sys.modules, "wandb", module)
    with pytest.raises(RuntimeError, match=r"wandb\.init"):
        logging.WandB()
    module.run = Run()
    run(logging.WandB())
    assert module.run.rows == ROWS
    assert module.run.axes == [(name, "update") for name in ROWS[0] if name != "update"]
    other = Run()
    run(logging.WandB(other, axis="batch"), 2)
    assert (other.axes[0], other.rows[0]["batch"]) == (("accuracy", "batch"), 2)


def test_mlflow(monkeypatch):
    calls = []
    module: Any = types.ModuleType("mlflow")
    module.log_metrics = lambda numbers, step, **options: calls.append(({"update": step, **numbers}, options))
    monkeypatch.setitem(sys.modules, "mlflow", module)
    run(logging.MLflow(synchronous=False))
    assert calls == [(row, {"synchronous": False}) for row in ROWS]


class Kept(logging.Logger):
    """Keeps what it is given."""

    def __init__(self, at_most: int) -> None:
        super().__init__(at_most)
        self.rows: list[dict[str, float]] = []

    def write(self, update: int, numbers: dict[str, float]) -> None:
        self.rows.append(numbers)


def test_names_of_what_is_inside():
    logger = Kept(4)
    logger(1, torch.tensor(2.0))
    logger(1, (torch.zeros(1), torch.eye(2)))
    logger(1, {"a": {"b": True}})
    whole = {"value/0/0": 0, "value/1/0/0": 1, "value/1/0/1": 0, "value/1/1/0": 0, "value/1/1/1": 1}
    assert logger.rows == [{"value": 2}, whole, {"a/b": 1}]


def test_values_too_large_to_log_are_left_out_and_reported_once():
    logger = Kept(4)
    with pytest.warns(UserWarning, match="matrix has 9 elements and is not logged: Kept takes at most 4"):
        logger(1, {"matrix": torch.zeros(3, 3), "loss": 1.0})
    logger(2, {"matrix": torch.zeros(3, 3), "loss": 2.0})
    assert logger.rows == [{"loss": 1}, {"loss": 2}]


def test_a_copy_of_a_collection_logs_nothing():
    logger = Kept(4)
    twin = copy.deepcopy(run(logger, 2))
    for _ in range(2):
        twin.update(torch.zeros(4, dtype=torch.long), torch.zeros(4, dtype=torch.long))
    assert len(logger.rows) == 1
