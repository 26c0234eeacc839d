"""Regression, segmentation, text: gradients, narrow types, what is refused, and what is told on the CPU."""

from __future__ import annotations

import copy
import inspect
import io
import math
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics
import torchmetrics.regression
import torchmetrics.segmentation
import torchmetrics.text
from hypothesis import given, settings
from hypothesis import strategies as st
from metrics.references import has_reference, theirs
from metrics.samples import ENSEMBLES, ROWWISE, required_options
from metrics.test_distributed import run
from torch import Tensor
from torchmetrics.utilities.exceptions import TorchMetricsUserError

import gapless
import gapless.metrics as metrics
from gapless.metrics import functional

ROWS, OUTPUTS = 12, 3
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, required_options(name)) for name in metrics.regression.__all__ if has_reference(name)),
    ("MeanSquaredError", {"squared": False}),
    ("RelativeSquaredError", {"squared": False}),
    *(("NormalizedRootMeanSquaredError", {"normalization": scale}) for scale in ("range", "std", "l2")),
    *(("CosineSimilarity", {"reduction": how}) for how in ("mean", "none")),
    ("R2Score", {"multioutput": "variance_weighted", "adjusted": 2}),
    ("ExplainedVariance", {"multioutput": "raw_values"}),
]


def options_for(name: str, options: dict[str, Any], outputs: int) -> dict[str, Any]:
    sized = "num_outputs" in inspect.signature(theirs(name).__init__).parameters
    return {**options, "num_outputs": outputs} if sized and outputs > 1 else options


def pair(name: str, outputs: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    if name in ENSEMBLES:
        return torch.rand(ROWS, 5, generator=random), torch.rand(ROWS, generator=random)
    shape = (ROWS,) if outputs == 1 and name not in ROWWISE else (ROWS, outputs + 1 - (outputs > 1))
    return torch.rand(shape, generator=random) + 0.1, torch.rand(shape, generator=random) + 0.1


@pytest.mark.parametrize("outputs", [1, OUTPUTS])
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_gradients_of_a_batch(name: str, options: dict[str, Any], outputs: int):
    options = options_for(name, options, outputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours, reference = getattr(metrics, name)(**options), theirs(name)(**options)
    for seed in range(2):
        preds, target = pair(name, outputs, seed)
        preds.requires_grad_()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            actual, expected = ours(preds, target), reference(preds, target)
        assert actual.requires_grad == ours.is_differentiable == reference.is_differentiable
        if actual.requires_grad:
            (gradient,) = torch.autograd.grad(actual.sum(), preds)
            (other,) = torch.autograd.grad(expected.sum(), preds)
            torch.testing.assert_close(gradient, other, rtol=1e-3, atol=1e-5)
    assert not any(value.requires_grad for part in ours.all_statistics() for value in part.state.values())
    result = ours.compute()
    assert not result.requires_grad
    torch.testing.assert_close(result, reference.compute().detach(), rtol=1e-3, atol=1e-5)
    pickle.dumps(copy.deepcopy(ours))
    with torch.no_grad():
        assert not ours(preds, target).requires_grad


@pytest.mark.parametrize("outputs", [1, OUTPUTS])
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_gradients_of_functions(name: str, options: dict[str, Any], outputs: int):
    if not getattr(metrics, name).is_differentiable:
        return
    function = getattr(functional, functional.function_name(name))
    known_size = inspect.signature(function).parameters
    accepted = {k: v for k, v in options_for(name, options, outputs).items() if k in known_size}
    preds, target = pair(name, outputs)
    preds = preds.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda value: function(value, target, **accepted), (preds,))


def test_gradients_of_perplexity_and_in_a_collection():
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 7, generator=random).requires_grad_()
    target = torch.randint(0, 7, (2, 5), generator=random)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten()).exp()
    actual = metrics.Perplexity()(logits, target)
    (ours,), (other,) = torch.autograd.grad(actual, logits), torch.autograd.grad(expected, logits)
    torch.testing.assert_close(ours, other)
    preds = torch.rand(6, requires_grad=True)
    both = metrics.MetricCollection(metrics.MeanSquaredError(), metrics.SpearmanCorrCoef())
    values = both(preds, torch.zeros(6))
    (gradient,) = torch.autograd.grad(values["MeanSquaredError"], preds)
    torch.testing.assert_close(gradient, preds.detach() / 3)
    assert not values["SpearmanCorrCoef"].requires_grad


def test_what_has_no_gradient_beside_what_has_one():
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(9, 4, generator=random).requires_grad_()
    target = torch.randint(0, 4, (9,), generator=random)
    names = ("HingeLoss", "Accuracy", "ConfusionMatrix", "AUROC", "CalibrationError")
    alone = [getattr(metrics, f"Multiclass{name}")(4) for name in names]
    together = metrics.MetricCollection([metric.clone() for metric in alone])
    actual = together(logits, target)
    for metric in alone:
        expected = metric(logits.detach(), target)
        torch.testing.assert_close(actual[type(metric).__name__].detach(), expected)
    (gradient,) = torch.autograd.grad(actual["MulticlassHingeLoss"], logits)
    assert gradient.abs().sum() > 0
    for metric in alone:
        torch.testing.assert_close(together.compute()[type(metric).__name__], metric.compute())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_other_types_of_input(name: str, options: dict[str, Any], dtype: torch.dtype):
    preds, target = (value.to(dtype) for value in pair(name, 1))
    metric = getattr(metrics, name)(**options)
    exact = getattr(metrics, name)(**options)
    torch.testing.assert_close(
        metric(preds, target), exact(preds.float(), target.float()), rtol=1e-4, atol=1e-5
    )
    function = getattr(functional, functional.function_name(name))
    actual = function(preds, target, **options)
    assert actual.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=4),
    st.sampled_from(["mean", "range", "std", "l2"]),
    st.sampled_from([1, OUTPUTS]),
)
def test_normalized_error_of_parts_is_that_of_the_whole(parts: list[int], scale: str, outputs: int):
    random = torch.Generator().manual_seed(sum(parts))
    shape = (sum(parts),) if outputs == 1 else (sum(parts), outputs)
    preds, target = torch.rand(shape, generator=random), torch.rand(shape, generator=random) + 1
    metric = metrics.NormalizedRootMeanSquaredError(scale, num_outputs=outputs)
    for x, y in zip(preds.split(parts), target.split(parts), strict=True):
        metric.update(x, y)
    missed = (preds - target).square().mean(0).sqrt()
    over = {
        "mean": target.mean(0),
        "range": target.amax(0) - target.amin(0),
        "std": target.std(0, correction=0),
        "l2": target.norm(dim=0),
    }[scale]
    if sum(parts) > 1:
        torch.testing.assert_close(metric.compute(), missed / over, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(("PearsonCorrCoef", {"num_outputs": value}) for value in (0, -5, 1.5, "a")),
        ("ConcordanceCorrCoef", {"num_outputs": 0}),
        ("SpearmanCorrCoef", {"num_outputs": "a"}),
        ("LogCoshError", {"num_outputs": -1}),
        ("RelativeSquaredError", {"num_outputs": None}),
    ],
)
def test_outputs_are_a_positive_integer(name: str, options: dict[str, Any]):
    with pytest.raises(ValueError, match="Expected argument `num_outputs` to be an int larger than 0"):
        getattr(metrics, name)(**options)


def test_columns_that_are_not_the_outputs():
    for name in ("RelativeSquaredError", "R2Score", "PearsonCorrCoef", "SpearmanCorrCoef"):
        for outputs, shape in ((2, (4, 3)), (1, (4, 3))):
            with pytest.raises(ValueError, match="`num_outputs` to match the second dimension"):
                getattr(metrics, name)(num_outputs=outputs).update(torch.rand(shape), torch.rand(shape))


def test_what_users_of_torchmetrics_catch():
    with pytest.raises(TorchMetricsUserError, match="Argument ``p`` must be a float or int") as caught:
        metrics.MinkowskiDistance(-1)
    assert isinstance(caught.value, ValueError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, ValueError)
    assert again.args == caught.value.args


def test_without_torchmetrics_it_is_a_plain_error(python):
    code = (
        "import gapless.metrics, sys\n"
        "try: gapless.metrics.MinkowskiDistance(-1)\n"
        "except ValueError as error: print(type(error) is ValueError, 'torchmetrics' in sys.modules)"
    )
    done = python("-c", code)
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_r2_of_too_few_samples():
    metric = metrics.R2Score()
    for call in (metric, functional.r2_score):
        with pytest.raises(ValueError, match="Needs at least two samples"):
            call(torch.ones(1), torch.ones(1))
    metric.reset()
    metric.update(torch.zeros(1), torch.ones(1))
    metric.update(torch.ones(1), torch.zeros(1))
    assert metric.compute() == -3.0
    adjusted = metrics.R2Score(adjusted=10)
    for rows, words in ((10, "More independent regressions than data points"), (11, "Division by zero")):
        preds, target = torch.arange(float(rows)), torch.arange(float(rows)) + 1
        with pytest.warns(UserWarning, match=f"{words} in adjusted r2 score"):
            actual = adjusted(preds, target)
        torch.testing.assert_close(actual, metrics.R2Score()(preds, target))


def test_r2_of_too_few_samples_does_not_wait():
    with gapless.emulate() as emulation:
        metric = metrics.R2Score(adjusted=1).to("cuda")
        value = torch.ones(1, device="cuda")
        before = emulation.waits
        metric.update(value, value)
        actual = metric.compute()
        assert emulation.waits == before
        assert math.isnan(actual.item())


def test_no_gradient_is_nan_where_targets_do_not_vary():
    for name in ("R2Score", "ExplainedVariance"):
        preds = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        (actual,) = torch.autograd.grad(getattr(metrics, name)()(preds, torch.ones(3)), preds)
        assert actual.tolist() == [0.0, 0.0, 0.0]


def test_correlation_of_what_does_not_vary():
    metric = metrics.PearsonCorrCoef(num_outputs=2)
    preds = torch.tensor([[1.0, 1.0], [2.0, 1.0]])
    with pytest.warns(UserWarning, match="The variance of predictions or target is close to zero"):
        actual = metric(preds, preds)
    assert actual[0] == 1.0
    assert actual[1].isnan()
    x = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small = functional.pearson_corrcoef(x * 1e-100, x.flip(0) * 1e-100)
    torch.testing.assert_close(small, functional.pearson_corrcoef(x, x.flip(0)))


def test_one_column_covers_every_output():
    preds, target = pair("PearsonCorrCoef", 1)
    alone, several = metrics.PearsonCorrCoef(), metrics.PearsonCorrCoef(num_outputs=2)
    torch.testing.assert_close(several(preds, target), alone(preds, target).repeat(2))


@pytest.mark.parametrize("name", ["pearson_corrcoef", "concordance_corrcoef", "spearman_corrcoef"])
@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 1), (ROWS, 2)], ids=str)
def test_shapes_of_correlations(name: str, shape: tuple[int, ...]):
    random = torch.Generator().manual_seed(0)
    preds, target = torch.rand(shape, generator=random), torch.rand(shape, generator=random)
    expected = getattr(torchmetrics.functional, name)(preds, target)
    torch.testing.assert_close(getattr(functional, name)(preds, target), expected, rtol=1e-3, atol=1e-5)


def masks(*shape: int, classes: int = 2) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    return tuple(torch.randint(0, classes, shape, generator=random) for _ in range(2))  # type: ignore[return-value]


@pytest.mark.parametrize("per_class", [True, False])
@pytest.mark.parametrize("shape", [(9,), (5, 6), (2, 5, 6)], ids=str)
def test_indices_of_one_image(shape: tuple[int, ...], per_class: bool):
    options: dict[str, Any] = {"num_classes": 4, "input_format": "index", "per_class": per_class}
    data = masks(*shape, classes=4)
    home = torchmetrics.functional.segmentation
    torch.testing.assert_close(metrics.MeanIoU(**options)(*data), theirs("MeanIoU")(**options)(*data))
    torch.testing.assert_close(functional.mean_iou(*data, **options), home.mean_iou(*data, **options))


@pytest.mark.parametrize("options", [{}, {"per_class": True}, {"include_background": False}])
def test_classes_that_the_first_batch_shows(options: dict[str, Any]):
    late, known_size = metrics.MeanIoU(**options), metrics.MeanIoU(3, **options)
    reference = theirs("MeanIoU")(**options)
    assert late.num_classes is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(late.compute(), reference.compute(), equal_nan=True)
    for shape in ((2, 3, 4, 4), (1, 3, 4, 4)):
        data = masks(*shape)
        torch.testing.assert_close(late(*data), known_size(*data))
    assert late.num_classes == 3
    torch.testing.assert_close(late.compute(), known_size.compute())
    late.persistent(True)
    file = io.BytesIO()
    torch.save(late.state_dict(), file)
    file.seek(0)
    again = metrics.MeanIoU(**options)
    again.persistent(True)
    again.load_state_dict(torch.load(file))
    torch.testing.assert_close(again.compute(), known_size.compute())
    empty = metrics.MeanIoU(**options)
    empty.persistent(True)
    merged = metrics.merge_states(empty, [empty.state_dict(), late.state_dict(), late.state_dict()])
    again.load_state_dict(merged)
    torch.testing.assert_close(again.compute(), known_size.compute())


def test_two_classes_with_one_background():
    metric, known_size = (metrics.MeanIoU(n, include_background=False) for n in (None, 2))
    for metric_ in (metric, known_size):
        metric_.persistent(True)
    other = metrics.MeanIoU(include_background=False)
    metric.update(*masks(2, 2, 4, 4))
    other.load_state_dict(metric.state_dict())
    for metric_ in (other, known_size, metric):
        metric_.update(*masks(2, 2, 4, 4))
    torch.testing.assert_close(metric.compute(), known_size.compute())
    torch.testing.assert_close(other.compute(), known_size.compute())


def test_masks_that_do_not_fit():
    index, channels = masks(2, 4, 4)[0], masks(2, 3, 4, 4)[0]
    with pytest.raises(RuntimeError, match="expected to have the same shape, got"):
        metrics.MeanIoU(3, input_format="mixed")(index, index)
    with pytest.raises(IndexError, match="Cannot determine `num_classes` from `preds` tensor"):
        metrics.MeanIoU()(index[0, 0], index[0, 0])
    with pytest.raises(ValueError, match="to be a positive integer, but got 0"):
        metrics.MeanIoU()(channels[:, :0], channels[:, :0])


def test_a_rank_without_data_learns_the_size(tmp_path: Path):
    first, second = run(2, tmp_path, "sized_ranks.py")
    assert first == second
    for name, expected in first["whole"].items():
        assert first["seen"][name] == pytest.approx(expected, rel=1e-5, nan_ok=True), name
        assert first["later"][name] == pytest.approx(expected, rel=1e-5, nan_ok=True), name
    assert first["collectives"] == 1
    # A batch over all processes, of which gradients would be taken of this process's.
    assert first["CosineSimilarity"] == pytest.approx([3**-0.5] * 3)
    assert first["MeanSquaredError"] == pytest.approx((2 + 2 * (1 + 4 + 4)) / 9)
