"""Metrics are found by themselves, and type checkers know their names."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from docs.pages import tool

import gapless.metrics as metrics
from gapless.metrics.compatibility.checkpoints import exchange
from gapless.metrics.rooms import ROOMS, file_in_torchmetrics, metrics_of

metric_names = tool("metric_names")
ONE_FILE = '''
from gapless.metrics.regression.errors import MeanSquaredError

class MeanFourthPower(MeanSquaredError):
    """The mean of the fourth powers of the errors."""

    torchmetrics_file = None
    torchmetrics_slots = (("fourth", "sum"), ("total", "seen", "int64"))

    def update(self, preds, target):
        super().update((preds - target) ** 2, preds * 0)
'''


@pytest.mark.parametrize("room", ROOMS)
def test_type_checkers_know_every_metric(room: str):
    written = Path(getattr(metrics, room).__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    assert imported(written) == imported(metric_names.stub(metrics_of(room))), "run `make format`"


def imported(text: str) -> set[tuple[str | None, str, str | None]]:
    """What a module imports: from where, what, and as what."""
    imports = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom))
    return {(node.module, alias.name, alias.asname) for node in imports for alias in node.names}


def test_what_metrics_have_in_common_is_none():
    from gapless.metrics.regression.correlation import Correlation

    assert "Correlation" not in metrics_of("regression")
    assert issubclass(metrics.PearsonCorrCoef, Correlation)
    assert not hasattr(metrics.regression, "Correlation")


def test_no_name_is_in_two_rooms():
    names = [name for room in ROOMS for name in metrics_of(room)]
    assert len(names) == len(set(names))
    assert set(names) < set(metrics.__all__)


def test_a_metric_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "fourth.py").write_text(ONE_FILE, encoding="utf-8")
    monkeypatch.setattr(metrics.regression, "__path__", [*metrics.regression.__path__, str(tmp_path)])
    classes = metrics_of.__wrapped__("regression")
    assert set(classes) - set(metrics_of("regression")) == {"MeanFourthPower"}
    metric_class = classes["MeanFourthPower"]
    assert file_in_torchmetrics(metric_class) is None
    metric, other = metric_class(), metric_class()
    metric.update(torch.tensor([1.0, 4.0]), torch.tensor([0.0, 2.0]))
    assert metric.compute() == 8.5
    states = exchange(metric).write()
    assert states == {"fourth": 17.0, "total": 2}
    exchange(other).read(states)
    other.update(torch.tensor([1.0]), torch.tensor([0.0]))
    assert other.compute() == 6
