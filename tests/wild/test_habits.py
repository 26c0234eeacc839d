"""What scripts that nobody here wrote do, and what went wrong with it once."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from gapless.analyze import report
from gapless.commands import _output
from gapless.emulation.emulator import Emulator
from gapless.errors import GaplessError
from gapless.model import Ending
from gapless.render import Style
from gapless.render.text import render


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator() as running:
        yield running


def test_a_wrapper_around_a_tensor_method(emulator, monkeypatch):
    """torch tells modes of the wrapper, under the method's name: what it wraps is meant."""
    calls = []
    real_to, real_item = torch.Tensor.to, torch.Tensor.item

    def to(self, *args, **kwargs):
        calls.append(args)
        return real_to(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.Tensor, "item", lambda self: real_item(self))
    x = torch.ones(2).to("cuda")
    assert x.device == torch.device("cuda:0")
    assert calls == [("cuda",)]
    assert x.sum().item() == 2
    assert [site.call for site in emulator.session().sites][-1] == "Tensor.item"


def test_a_wrapper_around_a_function_runs_once(emulator, monkeypatch):
    calls = []
    real = F.cross_entropy

    def cross_entropy(*args, **kwargs):
        calls.append(1)
        return real(*args, **kwargs)

    monkeypatch.setattr(F, "cross_entropy", cross_entropy)
    loss = F.cross_entropy(torch.zeros(2, 3, device="cuda"), torch.tensor([0, 1], device="cuda"))
    assert loss.is_cuda
    assert calls == [1]


@pytest.mark.parametrize(
    "like",
    [torch.zeros_like, torch.empty_like, lambda x: torch.full_like(x, 1), lambda x: x.new_zeros(2)],
    ids=["zeros_like", "empty_like", "full_like", "new_zeros"],
)
def test_what_is_made_like_a_host_tensor_stays_on_the_host(emulator, like):
    result = like(torch.tensor([0, 1])).zero_()
    x = torch.ones(3, device="cuda")
    x[result]
    assert [site.detail for site in emulator.session().sites] == ["index"]
    assert result.device.type == "cpu"
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cpu"):
        x[:2] + result


def test_stacking_what_lies_on_two_devices(emulator):
    with pytest.raises(RuntimeError, match="tensors is on cpu, different from other tensors on cuda:0"):
        torch.stack([torch.ones(3, device="cuda"), torch.ones(3)])


def test_an_lstm_that_was_left_on_the_host(emulator):
    with pytest.raises(RuntimeError, match="input tensor at cuda:0 and parameter tensor at cpu"):
        torch.nn.LSTM(3, 3)(torch.ones(2, 1, 3, device="cuda"))


def test_explicit_waits_are_the_users_own(emulator):
    torch.ones(1, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.current_stream().synchronize()
    findings = report(emulator.session()).findings
    assert [finding.code for finding in findings] == ["GAP130", "GAP131"]
    assert not any("torch waits here" in finding.remedy for finding in findings)


def test_a_script_that_fails_before_it_uses_the_gpu(emulator):
    session = emulator.session(("train.py",), Ending(how="error", status=1, message="ImportError: nothing"))
    text = render(report(session), Style(width=80))
    assert text.startswith("train.py failed before it used the GPU: ImportError: nothing.")


def test_a_script_that_is_interrupted_before_it_uses_the_gpu(emulator):
    """What the processes that it started had seen may be lost: that it ran on the CPU is not known."""
    session = emulator.session(("train.py",), Ending(how="interrupted", status=143))
    text = render(report(session), Style(width=80))
    assert text.startswith("train.py was interrupted before a use of the GPU was recorded.")


class _Full(io.StringIO):
    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def flush(self) -> None:
        raise OSError(28, "No space left on device")


def test_a_report_that_cannot_be_written():
    with open(os.devnull, "w") as elsewhere, pytest.raises(GaplessError, match="No space left on device"):
        _output.write(_Full(elsewhere.fileno()), "report")


def test_standard_output_is_closed(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import sys\nsys.exit(3)\n")
    command = [sys.executable, "-m", "gapless", "check", "-q", str(script)]
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (3, "")
