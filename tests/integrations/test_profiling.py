"""`gapless.profile()`: a block under the profiler; the GPU is only in the files."""

from __future__ import annotations

import fake_profiler
import pytest
import torch

import gapless.capture.profiling as profiling
from gapless.errors import UnreadableInput, UsageError
from gapless.integrations.profiling import profile
from gapless.model.profile import load


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A folder to work in, on a machine with a GPU."""
    monkeypatch.setattr(profiling, "machine", fake_profiler.machine)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def step():
    network = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        loss = network(torch.ones(4, 8)).sum()
        loss.item()
        loss.backward()
        optimizer.step()

    return step


def test_a_block_is_recorded_and_explained(gpu, step, capsys):
    taken = 0
    with profile(wait=1, warmup=1, active=3, output="here") as profiled:
        while not profiled.done:
            step()
            taken += 1
            assert taken < 50
    assert taken == 1 + 2 * (1 + 3)
    assert [path.parent.name for path in profiled.files] == ["times", "stacks"]
    report = profiled.report
    assert report.profile is not None
    assert report.profile.steps.count == 3
    lines = {str(finding.line and finding.line.function) for finding in report.findings}
    assert "step" in lines
    assert "Times come from steps recorded without Python stacks" in " ".join(report.notes)
    assert str(profiled) == capsys.readouterr().out
    assert load(gpu / "here" / "rank0.gapless.json")[0].steps.count == 3


def test_the_loop_goes_on_without_a_profiler(gpu, step):
    with profile(wait=0, warmup=1, active=1, show=False, stacks=False) as profiled:
        for _ in range(10):
            step()
    assert len(profiled.files) == 1
    assert not torch.autograd._profiler_enabled()


def test_nothing_is_printed_unless_wanted(gpu, step, capsys):
    with profile(wait=0, warmup=1, active=1, show=False):
        for _ in range(5):
            step()
    assert capsys.readouterr().out == ""


def test_other_ranks_say_nothing(gpu, step, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with profile(wait=0, warmup=1, active=1) as profiled:
        for _ in range(5):
            step()
    assert capsys.readouterr().out == ""
    assert {path.name for path in profiled.files} == {"rank1.pt.trace.json.gz"}


def test_too_short_a_block_warns(gpu, step):
    profiled = profile()
    profiled.__enter__()
    step()
    step()
    with pytest.warns(UserWarning, match="nothing was recorded: the script ended after 2 steps"):
        profiled.__exit__(None, None, None)
    with pytest.raises(UnreadableInput, match="nothing was recorded"):
        _ = profiled.report


def test_an_error_in_the_block_comes_through(gpu, step):
    def fails() -> None:
        with profile(show=False):
            step()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert not torch.autograd._profiler_enabled()


def test_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="gapless check"):
        profile()
