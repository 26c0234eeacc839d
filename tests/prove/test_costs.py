"""What a call costs on the emulated device; the losses of the example, first against last."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from gapless.prove import compare
from gapless.prove.waits import does_work

EXAMPLE = Path(__file__).parents[2] / "examples" / "segmentation"
STAGES = {"original": 6, "step1_where": 4, "step2_sort": 3, "step3_ignore_index": 0}


@pytest.fixture(autouse=True)
def _modules_kept(monkeypatch):
    """Modules that a test loads from files go with it."""
    before, path = dict(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - set(before):
        file = getattr(sys.modules[name], "__file__", None) or ""
        if str(EXAMPLE) in file:
            del sys.modules[name]
    sys.path[:] = path


def scenes(size: int = 8, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    logits = torch.randn(3, classes, size, size, requires_grad=True)
    return logits, torch.randint(-1, classes, (3, size, size))


def costs(original, fixed, inputs, **more):
    result = compare(original, fixed, inputs, seconds=0, edge_cases=False, **more)
    assert result.costs, result.notes
    return result.costs


@pytest.mark.parametrize("stage", STAGES)
def test_the_losses_of_the_example(stage):
    names = [f"{EXAMPLE / name}.py:ForegroundLoss(5)" for name in ("original", stage)]
    result = compare(*names, scenes, seconds=0)
    assert result.same, result
    assert result.gradients
    assert result.waits == (6, STAGES[stage])
    assert [case.name for case in result.cases if case.outcome != "same"] == []
    assert len(result.cases) >= 15
    (before, after) = result.costs
    assert sum(finding.frequency.per_step for finding in before.findings) == 6
    assert {finding.line.code for finding in before.findings if finding.line} >= {
        "values = torch.unique(labels)"
    }
    assert (after.findings == ()) == (STAGES[stage] == 0)
    assert any(spot.backward for finding in before.findings for spot in finding.spots or (finding,))


def test_what_is_said_of_waits():
    def original(x, mask):
        return x[mask].mean()

    def fixed(x, mask):
        return torch.where(mask, x, 0.0).sum() / mask.sum()

    def inputs():
        return torch.randn(12, 5, requires_grad=True), torch.rand(12, 5) < 0.5

    result = compare(original, fixed, inputs, seconds=0)
    assert result.waits == (2, 0)
    assert str(result) == "The same; no sync per call instead of 2."
    assert compare(original, fixed, inputs, seconds=0, only="full mask").costs == ()


def test_the_first_call_is_reported_separately():
    class Cached:
        def __init__(self):
            self.rows = None

        def __call__(self, x):
            if self.rows is None:
                self.rows = x.nonzero()
            return x.sum().item()

    (cost, _) = costs(Cached(), Cached(), lambda: torch.ones(4))
    assert (cost.first, cost.waits) == (2, 1)
    assert [finding.code for finding in cost.findings] == ["GAP101"]


def test_operators_are_those_that_work():
    def call(x):
        y = x.view(2, 3).T[0].unsqueeze(0)  # views
        torch.empty_like(x)  # an allocation
        return y + 1

    cost = costs(call, lambda x: (x + 1).exp().sum(), lambda: torch.ones(6))
    assert [side.operators for side in cost] == [1, 3]


def test_backward_counts():
    def f(x):
        return (x * x).sum()

    def inputs():
        return torch.ones(6, requires_grad=True)

    both = costs(f, f, inputs)[0], costs(f, f, inputs, backward=False)[0]
    assert both[0].operators > both[1].operators == 2


def test_peak_memory_is_what_lives_at_once():
    def wasteful(x):
        a, b = x + 1, x + 2
        return a + b

    def thrifty(x):
        return (x + 1).add_(x).add_(2)

    before, after = costs(wasteful, thrifty, lambda: torch.ones(1000))
    assert before.peak == 3 * 4000
    assert after.peak == 4000


def test_inputs_are_on_the_device_and_what_else_is_needed_is_not():
    table = torch.ones(4)
    (before, _) = costs(lambda x: x.cpu(), lambda x: x.cpu(), lambda: torch.ones(4))
    assert before.waits == 1
    (before, _) = costs(lambda x: x + table.to(x.device), lambda x: x, lambda: torch.ones(4))
    assert before.waits == 1
    layer = nn.Linear(4, 2)
    (before, _) = costs(layer, layer, lambda: torch.ones(3, 4))
    assert before.waits == 0


def test_unsupported_calls_are_reported_and_the_rest_runs():
    table = torch.ones(4)
    result = compare(lambda x: x + table, lambda x: x + table, lambda: torch.ones(4), seconds=0)
    assert result.same
    assert result.costs == ()
    assert result.waits is None
    assert any("syncs were not counted: on the emulated" in note for note in result.notes)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, which such code would use")
def test_code_that_asks_for_a_gpu_gets_one():
    def original(x):
        x = x.cuda()
        return x[x > 0].sum()

    def fixed(x):
        x = x.to("cuda")
        return torch.where(x > 0, x, 0.0).sum()

    result = compare(original, fixed, lambda: torch.randn(6, requires_grad=True), seconds=5)
    assert result.device == "an emulated NVIDIA A100-SXM4-80GB"
    assert result.same, result
    assert result.time is None
    assert "time was not measured: the code needs a GPU, and there is none here" in result.notes
    result = compare(
        lambda x: x.sum(), lambda x: x.sum(), lambda: torch.ones(3, device="cuda"), seconds=0, gpu="T4"
    )
    assert (result.device, result.same) == ("an emulated Tesla T4", True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, which such code would use")
def test_modules_follow_inputs_that_are_on_the_device():
    layer = nn.Linear(4, 2)
    result = compare(layer, layer, lambda: torch.ones(3, 4, device="cuda"), seconds=0)
    assert result.same
    assert result.waits == (0, 0)
    assert not layer.weight.is_cuda


def test_what_was_compiled_before_is_counted_as_it_is_written():
    def original(x):
        return x[x > 0].sum()

    compiled = torch.compile(original, backend="eager")
    result = compare(original, compiled, lambda: torch.ones(4), seconds=0, edge_cases=False)
    assert result.same
    assert result.waits == (1, 1)


def test_a_running_profiler_is_reported():
    def f(x):
        return x + 1

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        result = compare(f, f, lambda: torch.ones(4), seconds=0.01, edge_cases=False)
    assert "a profiler is running and affects the times: measure without it" in result.notes


def test_which_operators_work():
    aten = torch.ops.aten
    works = [aten.add.Tensor, aten.copy_.default, aten.relu_.default, aten.cat.default]
    rests = [aten.view.default, aten.t.default, aten.empty_like.default, aten.detach.default]
    assert all(does_work(work) for work in works)
    assert not any(does_work(rest) for rest in rests)
