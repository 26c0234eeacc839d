"""What tests of trainers share: a GPU that is only in the files, and reports to log."""

from __future__ import annotations

import fake_profiler
import pytest
from trace_builder import training

from gapless.analyze.profile.building import build_profile
from gapless.analyze.profile.profile_report import report_run
from gapless.capture import profiling
from gapless.integrations import _window
from gapless.model import Report

WINDOW = {"wait": 1, "warmup": 1, "active": 2}
"""Seven steps in all: one that passes, and twice three."""


@pytest.fixture
def paper_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """A machine whose profiles have device work in them, and an empty working directory."""
    monkeypatch.setattr(profiling, "machine", fake_profiler.machine)
    monkeypatch.chdir(tmp_path)  # type: ignore[arg-type]
    monkeypatch.delenv("RANK", raising=False)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """This machine without a GPU, of which nothing has been said yet."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(_window, "_said", set())
    monkeypatch.chdir(tmp_path)  # type: ignore[arg-type]


def of_profile() -> Report:
    return report_run([build_profile(training(steps=4).timeline())])
