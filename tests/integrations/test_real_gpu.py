"""Counting on a real GPU, with the GPU's part played by hand."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch._dynamo
from torch.utils._python_dispatch import TorchDispatchMode

from gapless.analyze import report

WORDS = "called a synchronizing CUDA operation"


class Reading(TorchDispatchMode):
    """Warns where a value is read, from inside of the operator, as torch does on a GPU."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name == "aten::_local_scalar_dense":
            warnings.warn(WORDS, stacklevel=1)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch):
    """A watch of a GPU whose debug mode is a note of what was set."""
    modes = ["default"]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA L4")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    from gapless.integrations._real_gpu import RealWatch

    with Reading():
        real_watch = RealWatch()
        yield real_watch
        real_watch.end()
    assert modes == ["default", "warn", 0]


def test_debug_mode_and_explicit_waits_are_counted_where_they_happen(watch):
    value = torch.ones(3).sum()
    assert value.item() == 3
    watch.count_from_here()
    for _ in range(2):
        value.item()
    torch.cuda.synchronize()
    session = watch.session()
    findings = report(session).findings
    assert {(finding.code, finding.frequency.total) for finding in findings} == {("GAP101", 2), ("GAP130", 1)}
    assert all(finding.line.file == __file__ for finding in findings)
    assert session.environment.device == "NVIDIA L4"
    assert not session.environment.emulated


def test_steps_are_optimizer_steps(watch):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], 0.1)
    for _ in range(5):
        weight.sum().backward()
        optimizer.step()
        warnings.warn(WORDS, stacklevel=1)
    steps = report(watch.session()).steps
    assert (steps.seen, steps.waits_per_step) == (5, 1)


def test_other_warnings_go_where_they_went(watch):
    with pytest.warns(UserWarning, match="something else"):
        warnings.warn("something else", stacklevel=1)
    assert watch.session().events == ()
