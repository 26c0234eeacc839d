"""The callback in Hugging Face's Trainer, on a GPU that is only in the profiles."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from integrations.training import WINDOW, no_gpu, paper_gpu  # noqa: F401 - fixtures

import gapless

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from gapless.integrations.huggingface import GaplessCallback  # noqa: E402


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.seen: list[float] = []

    def forward(self, x: Any, labels: Any = None) -> Any:
        loss = self.layer(x).sum()
        self.seen.append(loss.item())
        return {"loss": loss}


class Kept:
    def __init__(self) -> None:
        self.kept: list[tuple[dict[str, float], int | None]] = []

    def log(self, values: dict[str, float], step: int | None = None) -> None:
        self.kept.append((values, step))


def train(callback: GaplessCallback, steps: int = 12) -> None:
    data = [{"x": torch.randn(4), "labels": torch.zeros(1)} for _ in range(16)]
    arguments = transformers.TrainingArguments(
        output_dir="out",
        max_steps=steps,
        per_device_train_batch_size=2,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="transformers|accelerate|torch")
        transformers.Trainer(Model(), arguments, train_dataset=data, callbacks=[callback]).train()


@pytest.mark.usefixtures("paper_gpu")
def test_a_window_is_profiled_and_explained(capsys):
    tracker = Kept()
    callback = GaplessCallback(**WINDOW, log=tracker)
    train(callback)
    report = callback.report
    assert report is not None
    assert report.steps.seen == 2
    # The model's own read; the trainer adds some of its own.
    own = [
        finding
        for finding in report.findings
        if finding.line and finding.line.file.endswith("test_huggingface.py")
    ]
    assert "GAP101" in {finding.code for finding in own}
    assert report.sentence in " ".join(capsys.readouterr().out.split())
    ((logged, step),) = tracker.kept
    assert (logged["gapless/waits_per_step"], step) == (report.steps.waits_per_step, 12)
    assert list(Path("gapless-profile", "stacks").glob("*.json.gz"))


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_it_says_so_once():
    callback = GaplessCallback()
    with pytest.warns(UserWarning, match="profiling is off: a profile needs"):
        train(callback, steps=2)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="profiling is off")
        train(GaplessCallback(), steps=2)
    assert callback.report is None


@pytest.mark.usefixtures("paper_gpu")
def test_on_the_emulated_device_it_does_nothing():
    callback = GaplessCallback(**WINDOW)
    with gapless.emulate():
        train(callback, steps=2)
    assert callback.report is None
    assert not Path("gapless-profile").exists()
