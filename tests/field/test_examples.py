"""The examples wait where their README says, and the stages of one example compute the same."""

from __future__ import annotations

import importlib.util
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from field.expectations import by_line, races
from field.running import Outcome, check

from gapless.torch_internals import VERSION

EXAMPLES = Path(__file__).parents[2] / "examples"
METRICS = "metrics"
SEGMENTATION = "segmentation"


def waits(outcome: Outcome, when: str = "every-step") -> dict[str, float]:
    """Waits by the code of the line, backward added to the forward line that made it."""
    times: dict[str, float] = {}
    for finding in by_line(outcome.report["findings"]):
        if finding["frequency"]["when"] == when:
            code = finding["line"]["code"]
            times[code] = times.get(code, 0) + finding["frequency"]["waits"]
    return times


def run(folder: str, stage: str, *arguments: str, steps: str = "7") -> Outcome:
    """The outcome of a stage at its smallest, on a port of its own where it opens one."""
    size = ["--size", "32", "--log-every", "3"] if folder == METRICS else ["--size", "16"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    outcome = check(
        EXAMPLES / folder / f"{stage}.py",
        *size,
        *("--batch", "4", "--workers", "0"),
        *arguments,
        options=("--steps", steps),
        MASTER_PORT=port,
    )
    assert not races(outcome.report)
    return outcome


@pytest.mark.parametrize(
    ("stage", "arguments", "expected"),
    [
        ("naive", [], {'metrics["avg_loss"].update(loss, 1.0)': 3}),
        ("naive", ["--ddp"], {'metrics["avg_loss"].update(loss, 1.0)': 3}),
        (
            "naive",
            ["--average", "macro"],
            {'metrics["avg_loss"].update(loss, 1.0)': 3, "metrics[name].update(output, labels)": 8},
        ),
        ("step1_weight", [], {'metrics["avg_loss"].update(loss, torch.ones_like(loss))': 2}),
        ("step2_nan_check", [], {}),
        ("step3_cpu_time_metric", [], {}),
        ("step3_cpu_time_metric", ["--time-metric", "device"], {"step_time.update(end - begin)": 1}),
        ("step4_tensor_update", [], {}),
    ],
    ids=lambda value: (
        "-".join(value) if isinstance(value, list) else str(value) if isinstance(value, str) else ""
    ),
)
def test_metrics_stage_waits_as_its_readme_says(
    stage: str, arguments: list[str], expected: dict[str, float]
) -> None:
    outcome = run(METRICS, stage, *arguments)
    assert outcome.status == 0, outcome.errors[-4000:]
    assert waits(outcome) == expected
    assert outcome.report["steps"]["least"] == sum(expected.values())
    if "--ddp" not in arguments:  # under DDP reading a metric also gathers it
        (read,) = [code for code in waits(outcome, "some-steps") if "metric.compute().item()" in code]
        assert waits(outcome, "some-steps")[read] == 5


@pytest.mark.parametrize("time_metric", ["cpu", "local", "device"])
def test_a_metric_on_the_cpu_fails_under_nccl_as_it_does_on_a_gpu(time_metric: str) -> None:
    arguments = ("--steps", "3", "--log-every", "10", "--ddp", "--time-metric", time_metric)
    outcome = run(METRICS, "step3_cpu_time_metric", *arguments, steps="all")
    if time_metric == "cpu":
        assert outcome.status == 1
        assert "RuntimeError: No backend type associated with device type cpu" in outcome.errors
        assert outcome.report["ending"]["how"] == "error"
    else:
        assert outcome.status == 0, outcome.errors[-4000:]
        assert "mean step time:" in outcome.printed


@pytest.mark.parametrize(
    ("stage", "arguments", "expected"),
    [
        (
            "original",
            [],
            {
                "background = torch.nonzero(labels == self.classes - 1, as_tuple=True)": 1,
                **({"labels[background] = IGNORE": 1} if VERSION < (2, 15) else {}),
                "values = torch.unique(labels)": 1,
                "chosen_labels = labels[foreground]": 1,
                "chosen_logits = logits.permute(0, 2, 3, 1)[foreground]": 2,
            },
        ),
        (
            "step1_where",
            [],
            {
                "values = torch.unique(labels)": 1,
                "chosen_labels = labels[foreground]": 1,
                "chosen_logits = logits.permute(0, 2, 3, 1)[foreground]": 2,
            },
        ),
        (
            "step2_sort",
            [],
            {
                "chosen_labels = labels[foreground]": 1,
                "chosen_logits = logits.permute(0, 2, 3, 1)[foreground]": 2,
            },
        ),
        ("step3_ignore_index", [], {}),
        ("step3_ignore_index", ["--as-published"], {}),
        ("step4_ops", [], {}),
    ],
    ids=["original", "step1", "step2", "step3", "as-published", "step4"],
)
def test_segmentation_stage_waits_as_its_readme_says(
    stage: str, arguments: list[str], expected: dict[str, float]
) -> None:
    outcome = run(SEGMENTATION, stage, *arguments)
    assert outcome.status == 0, outcome.errors[-4000:]
    assert waits(outcome) == expected


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The segmentation stages as modules, by name."""
    monkeypatch.syspath_prepend(str(EXAMPLES / SEGMENTATION))
    sys.modules.pop("common", None)
    loaded = {}
    for path in sorted((EXAMPLES / SEGMENTATION).glob("*.py")):
        if path.stem == "common":
            continue
        spec = importlib.util.spec_from_file_location(f"segmentation_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        loaded[path.stem] = module
    yield loaded
    sys.modules.pop("common", None)


def loss_and_gradient(
    module: Any, logits: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = logits.clone().requires_grad_()
    loss = module.ForegroundLoss(4)(logits, labels.clone())
    loss.backward()
    assert logits.grad is not None
    return loss.detach(), logits.grad


@pytest.mark.parametrize(
    "kind",
    ["mixed", "two labels", "one label", "background and one label", "background only", "ignored only"],
)
def test_every_stage_of_the_loss_is_the_same_number(stages: dict[str, ModuleType], kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 4, 8, 8, generator=generator)
    labels = {
        "mixed": torch.randint(-1, 4, (2, 8, 8), generator=generator),
        "two labels": torch.randint(0, 2, (2, 8, 8), generator=generator),
        "one label": torch.ones(2, 8, 8, dtype=torch.long),
        "background and one label": torch.randint(2, 4, (2, 8, 8), generator=generator),
        "background only": torch.full((2, 8, 8), 3),
        "ignored only": torch.full((2, 8, 8), -1),
    }[kind]
    later_stages = {"step1_where", "step2_sort", "step3_ignore_index", "step4_ops"}
    assert set(stages) == {"original"} | later_stages
    loss, gradient = loss_and_gradient(stages["original"], logits, labels)
    assert (loss == 0) == (kind == "one label")
    assert loss.isnan() == kind.endswith("only")
    for name in sorted(later_stages):
        other, other_gradient = loss_and_gradient(stages[name], logits, labels)
        torch.testing.assert_close(other, loss, equal_nan=True)
        torch.testing.assert_close(other_gradient, gradient)


def test_every_stage_is_the_same_on_random_maps(stages: dict[str, ModuleType]) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        logits = 4 * torch.randn(2, 4, 3, 3, generator=generator)
        allowed = torch.randint(-1, 4, (3,), generator=generator)  # some maps have few labels, or one
        labels = allowed[torch.randint(0, 3, (2, 3, 3), generator=generator)]
        loss, gradient = loss_and_gradient(stages["original"], logits, labels)
        for name in sorted(set(stages) - {"original"}):
            other, other_gradient = loss_and_gradient(stages[name], logits, labels)
            torch.testing.assert_close(other, loss, equal_nan=True)
            torch.testing.assert_close(other_gradient, gradient)


def test_the_published_last_step_is_another_loss(stages: dict[str, ModuleType]) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 4, 8, 8, generator=generator)
    labels = torch.randint(-1, 4, (2, 8, 8), generator=generator)
    kept, _ = loss_and_gradient(stages["step3_ignore_index"], logits, labels)
    published = torch.nn.CrossEntropyLoss(ignore_index=stages["step3_ignore_index"].IGNORE)(logits, labels)
    assert not torch.allclose(kept, published)
