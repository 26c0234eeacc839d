"""Metrics of images, divergences and deviances: precision, gradients, bad values, refused inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchmetrics
from torchmetrics.functional.regression import tweedie_deviance_score

import gapless
import gapless.metrics as metrics
from gapless.metrics import functional

SSIM = metrics.StructuralSimilarityIndexMeasure


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(dtype: torch.dtype):
    preds, target = torch.rand(2, 2, 3, 16, 16).to(dtype)
    for metric in (SSIM(data_range=1.0), metrics.PeakSignalNoiseRatio(1.0)):
        metric.update(preds, target)
        torch.testing.assert_close(
            metric.compute(), type(metric)(data_range=1.0)(preds.float(), target.float())
        )


def test_gradients_are_torchmetrics():
    target = torch.rand(1, 2, 16, 16)
    gradients = []
    for call in (functional, torchmetrics.functional.image):
        preds = target.flip(3).clone().requires_grad_()
        loss = call.structural_similarity_index_measure(preds, target, data_range=1.0)
        (loss + call.peak_signal_noise_ratio(preds, target, data_range=1.0)).backward()
        gradients.append(preds.grad)
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


def test_a_window_travels_to_the_device_once():
    with gapless.emulate() as emulator:
        metric = SSIM().to("cuda")
        for _ in range(3):
            metric.update(torch.rand(1, 1, 16, 16, device="cuda"), torch.rand(1, 1, 16, 16, device="cuda"))
        weights = metric.similarity.config[0]._held
        assert len(weights) == 1
        assert all(row.is_cuda for rows in weights.values() for row in rows)
        assert emulator.waits == 0


@pytest.mark.parametrize("power", [-1, 1, 1.5, 2, 3])
def test_pairs_without_a_deviance_are_ignored_and_reported(power: float):
    preds, targets = torch.tensor([0.5, 2.0, -1.0, 0.0]), torch.tensor([1.0, 0.5, 2.0, 1.0])
    metric = metrics.TweedieDevianceScore(power)
    with pytest.raises(
        RuntimeError, match=rf"Left out 2 pairs: for power={power}, `preds` has to be positive"
    ):
        metric.update(preds, targets)
    torch.testing.assert_close(metric.compute(), tweedie_deviance_score(preds[:2], targets[:2], power))


def test_events_may_be_targets_of_nothing():
    poisson = metrics.TweedieDevianceScore(1)
    poisson.update(torch.tensor([2.0]), torch.tensor([0.0]))
    assert poisson.compute().item() == 4.0


WRONG: list[tuple[Any, Any, str]] = [
    (lambda: SSIM(), (torch.rand(2, 16, 16),) * 2, "BxCxHxW or BxCxDxHxW"),
    (lambda: SSIM(), (torch.rand(1, 1, 16, 16), torch.rand(1, 1, 16, 17)), "same shape"),
    (lambda: SSIM(sigma=(1.0, 1.0, 1.0)), (torch.rand(1, 1, 16, 16),) * 2, "`sigma` has dimension 3"),
    (lambda: SSIM(kernel_size=4), (torch.rand(1, 1, 16, 16),) * 2, "odd positive number"),
    (lambda: SSIM(sigma=-1.0), (torch.rand(1, 1, 16, 16),) * 2, "positive number"),
    (lambda: metrics.MultiScaleStructuralSimilarityIndexMeasure(), (torch.rand(1, 1, 16, 16),) * 2, "32"),
    (lambda: metrics.KLDivergence(), (torch.rand(3),) * 2, "to be 2D"),
    (lambda: metrics.CriticalSuccessIndex(0.5, 2), (torch.rand(3),) * 2, "keep_sequence dim"),
]


@pytest.mark.parametrize(("make", "arguments", "words"), WRONG)
def test_what_does_not_fit_is_refused(make: Any, arguments: Any, words: str):
    with pytest.raises((ValueError, RuntimeError), match=words):
        make().update(*arguments)


OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("StructuralSimilarityIndexMeasure", {"reduction": "max"}, "reduction"),
    (
        "StructuralSimilarityIndexMeasure",
        {"return_full_image": True, "return_contrast_sensitivity": True},
        "exclusive",
    ),
    ("MultiScaleStructuralSimilarityIndexMeasure", {"betas": [0.5]}, "tuple"),
    ("MultiScaleStructuralSimilarityIndexMeasure", {"betas": (1, 2)}, "floats"),
    ("MultiScaleStructuralSimilarityIndexMeasure", {"normalize": "x"}, "normalize"),
    ("MultiScaleStructuralSimilarityIndexMeasure", {"kernel_size": (3,)}, "kernel_size"),
    ("KLDivergence", {"reduction": "max"}, "reduction"),
    ("TweedieDevianceScore", {"power": 0.5}, "not defined for power=0.5"),
    ("GeneralizedDiceScore", {"num_classes": 3, "weight_type": "x"}, "weight_type"),
    ("GeneralizedDiceScore", {"num_classes": 3, "per_class": 1}, "per_class"),
]


@pytest.mark.parametrize(("name", "options", "words"), OPTIONS)
def test_constructors_refuse(name: str, options: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words):
        getattr(metrics, name)(**options)


def test_a_reduction_without_dimensions_is_warned_of():
    with pytest.warns(UserWarning, match="will not have any effect when `dim` is None"):
        metrics.PeakSignalNoiseRatio(1.0, reduction="sum")
    with pytest.raises(TypeError, match="log_prob"):
        metrics.KLDivergence(log_prob=1)
