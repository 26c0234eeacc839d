"""Numbers of reports, logged to writers that keep what they are given."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from integrations.training import of_profile
from sessions import example

from gapless.errors import UsageError
from gapless.integrations.trackers import log, numbers

CHECK = {"gapless/findings": 5.0, "gapless/waits_per_step": 3.2}


def test_numbers_of_a_check():
    assert numbers(example()) == pytest.approx(CHECK)


def test_numbers_of_a_profile():
    report = of_profile()
    values = numbers(report, prefix="")
    profile = report.profile
    assert profile is not None
    assert values["step_ms"] == pytest.approx(profile.steps.mean / 1e6)
    assert values["gpu_utilization"] == pytest.approx(100 * profile.utilization)
    assert values["gpu_idle"] == pytest.approx(100 * profile.idle / profile.steps.total)
    causes = [value for name, value in values.items() if name.startswith("gpu_idle_by_cause/")]
    assert sum(causes) == pytest.approx(values["gpu_idle"])
    assert values["waits_per_step"] == report.steps.waits_per_step
    # MLflow's file store makes a file of each name, and folders of what is before a slash.
    assert not any(other.startswith(f"{name}/") for name in values for other in values)


class Writer:
    """As TensorBoard's."""

    def __init__(self) -> None:
        self.scalars: dict[str, tuple[float, Any]] = {}
        self.texts: dict[str, str] = {}

    def add_scalar(self, name: str, value: float, step: int | None) -> None:
        self.scalars[name] = (value, step)

    def add_text(self, name: str, text: str, step: int | None) -> None:
        self.texts[name] = text

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True


def test_tensorboard():
    writer = Writer()
    log(example(), writer, 7)
    assert writer.scalars == {name: (pytest.approx(value), 7) for name, value in CHECK.items()}
    assert writer.texts["gapless/report"].startswith(
        "### 3 to 4 syncs in every step; 12 more in the one evaluation seen."
    )


def test_tensorboard_itself(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        log(example(), writer, 7)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert events.Scalars("gapless/waits_per_step")[0].value == pytest.approx(3.2)


class Kept:
    def __init__(self) -> None:
        self.kept: list[tuple[dict[str, float], int | None]] = []

    def take(self, values: dict[str, float], step: int | None = None) -> None:
        self.kept.append((values, step))


@pytest.mark.parametrize("verb", ["log", "log_metrics"])
def test_runs_and_loggers(verb):
    kept = Kept()
    log(example(), SimpleNamespace(**{verb: kept.take}), 3, prefix="run/")
    assert kept.kept == [({"run/findings": 5.0, "run/waits_per_step": pytest.approx(3.2)}, 3)]


@pytest.mark.parametrize(("name", "verb"), [("wandb", "log"), ("mlflow", "log_metrics")])
def test_by_name(monkeypatch, name, verb):
    kept, module = Kept(), ModuleType(name)
    setattr(module, verb, kept.take)
    module.run = SimpleNamespace(log=kept.take)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    log(example(), name, 3)
    assert kept.kept == [(pytest.approx(CHECK), 3)]


def test_tensorboard_by_name(monkeypatch):
    writer, module = Writer(), ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = lambda: writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    log(example(), "tensorboard", 3)
    assert set(writer.scalars) == set(CHECK)
    assert writer.closed


def test_what_is_none(monkeypatch):
    with pytest.raises(UsageError, match="dict is not a supported tracker"):
        log(example(), {}, 1)
    with pytest.raises(
        UsageError, match="unknown tracker 'neptune': choose one of tensorboard, wandb, mlflow"
    ):
        log(example(), "neptune", 1)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UsageError, match="mlflow is not installed: pip install mlflow"):
        log(example(), "mlflow", 1)
    module = ModuleType("wandb")
    module.run = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    with pytest.raises(UsageError, match=r"no wandb run is active: call wandb\.init\(\) first"):
        log(example(), "wandb", 1)
