"""The callback in Lightning's own loop, on a GPU that is only in the profiles."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from integrations.training import WINDOW, no_gpu, paper_gpu  # noqa: F401 - fixtures

import gapless

lightning = pytest.importorskip("lightning.pytorch")

from gapless.integrations.lightning import GaplessCallback  # noqa: E402


class Module(lightning.LightningModule):
    def __init__(self, fails_at: int = -1) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.fails_at = fails_at
        self.seen: list[float] = []

    def training_step(self, batch: Any, number: int) -> Any:
        if number == self.fails_at:
            raise RuntimeError("no more")
        loss = self.layer(batch).sum()
        self.seen.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.01)


class Logger(lightning.loggers.logger.Logger):
    name, version = "kept", 0

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[dict[str, float], int | None]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.kept.append((metrics, step))

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        pass


def fit(
    callback: GaplessCallback, batches: int = 12, module: Module | None = None, logger: Any = False
) -> None:
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        limit_train_batches=batches,
        callbacks=[callback],
        logger=logger,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        trainer.fit(module or Module(), torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=4))


@pytest.mark.usefixtures("paper_gpu")
def test_a_window_is_profiled_and_explained(capsys):
    logger = Logger()
    callback = GaplessCallback(**WINDOW)
    module = Module()
    fit(callback, logger=logger, module=module)
    assert len(module.seen) == 12  # training ran to its end
    report = callback.report
    assert report is not None
    assert report.steps.seen == 2
    assert report.steps.waits_per_step == 1
    assert "GAP101" in [finding.code for finding in report.findings]
    assert report.sentence in " ".join(capsys.readouterr().out.split())
    for which in ("times", "stacks"):
        assert list(Path("gapless-profile", which).glob("*.json.gz"))
    ((logged, step),) = [entry for entry in logger.kept if "gapless/waits_per_step" in entry[0]]
    assert (logged["gapless/waits_per_step"], step) == (1, 12)
    assert 0 < logged["gapless/gpu_utilization"] <= 100
    saved = json.loads(Path("gapless-profile", "rank0.gapless.json").read_text())
    assert saved["format"] == "gapless-profile"


@pytest.mark.usefixtures("paper_gpu")
def test_quiet(capsys):
    callback = GaplessCallback(**WINDOW, show=False, log=False, output="elsewhere")
    fit(callback, batches=7)
    assert callback.report is not None
    assert capsys.readouterr().out == ""
    assert Path("elsewhere").is_dir()


@pytest.mark.usefixtures("paper_gpu")
def test_training_that_ends_before_the_window():
    callback = GaplessCallback(**WINDOW)
    with pytest.warns(UserWarning, match="nothing was recorded"):
        fit(callback, batches=1)
    assert callback.report is None


@pytest.mark.usefixtures("paper_gpu")
def test_training_that_fails_reports_what_was_recorded():
    callback = GaplessCallback(**WINDOW, show=False)
    with pytest.raises(RuntimeError, match="no more"):
        fit(callback, module=Module(fails_at=5))
    assert callback.report is not None


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_it_says_so_once():
    callback = GaplessCallback()
    with pytest.warns(UserWarning, match="profiling is off: a profile needs"):
        fit(callback, batches=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fit(GaplessCallback(), batches=2)
    assert callback.report is None
    assert not Path("gapless-profile").exists()


@pytest.mark.usefixtures("paper_gpu")
def test_on_the_emulated_device_it_does_nothing():
    callback = GaplessCallback(**WINDOW)
    with gapless.emulate() as emulator:
        fit(callback, batches=3)
    assert emulator.waits == 0  # the trainer was told to use the CPU
    assert callback.report is None
    assert not Path("gapless-profile").exists()
