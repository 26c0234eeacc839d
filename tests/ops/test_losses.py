"""Losses with a mask equal the losses of what the mask selects."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from ops.drawing import Masked, gradient, leaf, masked
from torch import Tensor
from torch.autograd import gradcheck

from gapless import ops

LOSSES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "mse": (ops.mse_loss, F.mse_loss, {}),
    "l1": (ops.l1_loss, F.l1_loss, {}),
    "smooth l1": (ops.smooth_l1_loss, F.smooth_l1_loss, {"beta": 0.3}),
    "smooth l1 of beta 0": (ops.smooth_l1_loss, F.smooth_l1_loss, {"beta": 0.0}),
    "huber": (ops.huber_loss, F.huber_loss, {"delta": 0.7}),
    "binary": (ops.binary_cross_entropy, F.binary_cross_entropy, {}),
    "binary, logits": (ops.binary_cross_entropy_with_logits, F.binary_cross_entropy_with_logits, {}),
}
REDUCTIONS = st.sampled_from(["mean", "sum", "none"])
SHAPES = st.sampled_from([(), (4,), (3, 2), (0,), (2, 3, 2)])


def scattered(values: Tensor, mask: Tensor, reduction: str) -> Tensor:
    """A reference's result for the selection, back in the shape of the mask where it was not reduced."""
    if reduction != "none":
        return values
    return torch.zeros(mask.shape, dtype=values.dtype).masked_scatter(mask, values)


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=50, deadline=None)
@given(data=st.data(), reduction=REDUCTIONS)
def test_as_the_selection(name: str, data: st.DataObject, reduction: str) -> None:
    ours, theirs, options = LOSSES[name]
    drawn = data.draw(SHAPES.flatmap(masked))
    other = data.draw(masked(shape=tuple(drawn.x.shape), strided=False))
    target, poisoned = other.x, torch.where(drawn.mask, other.x, drawn.poisoned)
    values, inputs = drawn.x, drawn.poisoned
    if name.startswith("binary"):
        target = target.sigmoid()
        poisoned = torch.where(drawn.mask, target, poisoned)
    if name == "binary":
        values = values.sigmoid()
        inputs = torch.where(drawn.mask, values, inputs)
    x, y, a, b = leaf(inputs), leaf(values), leaf(poisoned), leaf(target)
    actual = ours(x, a, drawn.mask, reduction=reduction, **options)
    chosen = theirs(y[drawn.mask], b[drawn.mask], reduction=reduction, **options)
    wanted = scattered(chosen, drawn.mask, reduction)
    torch.testing.assert_close(actual, wanted, equal_nan=True)
    for tensor, other_one in ((x, y), (a, b)):
        torch.testing.assert_close(gradient(actual, tensor), gradient(wanted, other_one))


@st.composite
def labelled(draw: st.DrawFn) -> tuple[Masked, Tensor, Tensor]:
    """Logits of classes along dimension 1 (or 0, for one alone), labels, and the mask of their positions."""
    places = draw(st.sampled_from([(), (6,), (2, 3), (1,), (2, 2, 2), (0,)]))
    classes = draw(st.integers(2, 4))
    drawn = draw(masked(shape=places, strided=False))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    labels = torch.randint(0, classes, places, generator=random)
    logits = torch.randn(*places, classes, generator=random, dtype=torch.float64)
    poisoned = torch.where(drawn.mask.unsqueeze(-1), logits, drawn.poisoned.unsqueeze(-1))
    return Masked(logits, drawn.mask, poisoned), labels, torch.rand(classes, generator=random).double() + 0.1


def classes_second(logits: Tensor) -> Tensor:
    return logits.movedim(-1, 1) if logits.dim() > 1 else logits


@settings(max_examples=150, deadline=None)
@given(
    selection=labelled(),
    reduction=REDUCTIONS,
    weighted=st.booleans(),
    smoothing=st.sampled_from([0.0, 0.2]),
    how=st.sampled_from(["mask", "one label", "labels", "uint8"]),
)
def test_cross_entropy_of_the_selection(
    selection: tuple[Masked, Tensor, Tensor], reduction: str, weighted: bool, smoothing: float, how: str
) -> None:
    drawn, labels, weight = selection
    options: dict[str, Any] = {"reduction": reduction, "weight": weight if weighted else None}
    x, y = leaf(drawn.poisoned), leaf(drawn.x)
    chosen = F.cross_entropy(y[drawn.mask], labels[drawn.mask], label_smoothing=smoothing, **options)
    wanted = scattered(chosen, drawn.mask, reduction)
    if how == "mask":
        options |= {"mask": drawn.mask}
    else:
        ignored = [255] if how == "uint8" else [-1] if how == "one label" else [-1, 77]
        which = torch.arange(labels.numel()).view(labels.shape) % len(ignored)
        labels = torch.where(drawn.mask, labels, torch.tensor(ignored)[which])
        labels = labels.to(torch.uint8) if how == "uint8" else labels
        options |= {"ignore_index": ignored[0] if len(ignored) == 1 else ignored}
    actual = ops.cross_entropy(classes_second(x), labels, label_smoothing=smoothing, **options)
    torch.testing.assert_close(actual, wanted, equal_nan=True)
    torch.testing.assert_close(gradient(actual, x), gradient(wanted, y))
    if smoothing == 0:
        actual = ops.nll_loss(classes_second(x), labels, **options)
        wanted = scattered(
            F.nll_loss(
                y[drawn.mask], selection[1][drawn.mask], weight if weighted else None, reduction=reduction
            ),
            drawn.mask,
            reduction,
        )
        torch.testing.assert_close(actual, wanted, equal_nan=True)
        torch.testing.assert_close(gradient(actual, x), gradient(wanted, y))


@settings(max_examples=80, deadline=None)
@given(
    selection=labelled(), reduction=REDUCTIONS, weighted=st.booleans(), smoothing=st.sampled_from([0.0, 0.2])
)
def test_cross_entropy_with_probabilities(
    selection: tuple[Masked, Tensor, Tensor], reduction: str, weighted: bool, smoothing: float
) -> None:
    drawn, _, weight = selection
    options: dict[str, Any] = {
        "reduction": reduction,
        "weight": weight if weighted else None,
        "label_smoothing": smoothing,
    }
    x, y = leaf(drawn.poisoned), leaf(drawn.x)
    target = drawn.x.flip(-1).softmax(-1)
    a, b = leaf(torch.where(drawn.mask.unsqueeze(-1), target, torch.nan)), leaf(target)
    actual = ops.cross_entropy(classes_second(x), classes_second(a), mask=drawn.mask, **options)
    wanted = scattered(F.cross_entropy(y[drawn.mask], b[drawn.mask], **options), drawn.mask, reduction)
    torch.testing.assert_close(actual, wanted, equal_nan=True)
    torch.testing.assert_close(gradient(actual, x), gradient(wanted, y))
    torch.testing.assert_close(gradient(actual, a), gradient(wanted, b))


@pytest.mark.parametrize("name", LOSSES)
def test_derivatives(name: str) -> None:
    random = torch.Generator().manual_seed(0)
    x, y = (torch.rand(3, 4, generator=random, dtype=torch.float64) * 0.8 + 0.1 for _ in range(2))
    mask = torch.rand(3, 4, generator=random) > 0.4
    ours, _, options = LOSSES[name]
    assert gradcheck(lambda a, b: ours(a, b, mask, **options), (x.requires_grad_(), y.requires_grad_()))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_derivatives_of_cross_entropy(smoothing: float, weighted: bool) -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(6, 3, generator=random, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, -1, 2, -2, 1])
    weight = torch.tensor([0.2, 0.5, 1.0], dtype=torch.float64) if weighted else None
    assert gradcheck(
        lambda x: ops.cross_entropy(x, labels, weight, ignore_index=(-1, -2), label_smoothing=smoothing), x
    )


def test_without_anything_left_out_it_is_the_reference() -> None:
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(4, 3, generator=random), torch.rand(4, 3, generator=random)
    for ours, theirs, options in LOSSES.values():
        values = x.sigmoid() if ours is ops.binary_cross_entropy else x
        torch.testing.assert_close(ours(values, y, **options), theirs(values, y, **options))
    labels = torch.tensor([0, 2, -100, 1])
    torch.testing.assert_close(ops.cross_entropy(x, labels), F.cross_entropy(x, labels))
    torch.testing.assert_close(ops.nll_loss(x, labels), F.nll_loss(x, labels))


def test_missing_targets_are_nan() -> None:
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    target = torch.tensor([0.0, torch.nan, 5.0])
    loss = ops.mse_loss(x, target, ignore_index=torch.nan)
    assert loss == 2.5
    assert gradient(loss, x).tolist() == [1, 0, -2]
    assert ops.l1_loss(x, target, torch.tensor([False, True, True]), ignore_index=torch.nan) == 2


def test_weights_of_elements() -> None:
    x, y, w = (
        torch.tensor([0.2, 0.9, 7.0]),
        torch.tensor([0.0, 1.0, torch.nan]),
        torch.tensor([1.0, 3.0, torch.nan]),
    )
    mask = torch.tensor([True, True, False])
    wanted = F.binary_cross_entropy(x[:2], y[:2], w[:2])
    torch.testing.assert_close(ops.binary_cross_entropy(x, y, mask, weight=w), wanted)
    wanted = F.binary_cross_entropy_with_logits(x[:2], y[:2], w[:2], pos_weight=torch.tensor(2.0))
    actual = ops.binary_cross_entropy_with_logits(x, y, mask, weight=w, pos_weight=torch.tensor(2.0))
    torch.testing.assert_close(actual, wanted)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_value_for_nothing(smoothing: float) -> None:
    x = torch.full((3, 2), torch.nan, requires_grad=True)
    nothing = torch.zeros(3, dtype=torch.bool)
    loss = ops.cross_entropy(x, torch.zeros(3).long(), mask=nothing, empty=0.0, label_smoothing=smoothing)
    assert loss == 0
    assert torch.equal(gradient(loss, x), torch.zeros(3, 2))
    for ours, _, options in LOSSES.values():
        loss = ours(x, x.detach(), nothing.unsqueeze(1), empty=0.5, **options)
        assert loss == 0.5
        assert torch.equal(gradient(loss, x), torch.zeros(3, 2))


def test_half_precision_does_not_overflow_on_the_way_to_a_mean() -> None:
    x = torch.full((300, 300), 30.0, dtype=torch.float16)
    assert ops.mse_loss(x, torch.zeros_like(x), x > 0) == 900
    labels = torch.zeros(70000, dtype=torch.long)
    logits = torch.tensor([[-20.0, 0.0]], dtype=torch.float16).expand(70000, 2)
    # 0.9 * 20 + 0.1 * (20 + 0) / 2; torch adds the parts up in half precision and gives NaN.
    assert ops.cross_entropy(logits, labels, label_smoothing=0.1) == 19


def test_mistakes_are_reported() -> None:
    x = torch.zeros(4, 3)
    with pytest.raises(ValueError, match=r"the same shape, but got \(4, 3\) and \(4, 1\)"):
        ops.mse_loss(x, x[:, :1])
    with pytest.raises(ValueError, match="median is not a valid value for reduction"):
        ops.l1_loss(x, x, reduction="median")
    with pytest.raises(ValueError, match="average is not a valid value for reduction"):
        ops.cross_entropy(x, torch.zeros(4).long(), reduction="average")
    with pytest.raises(
        RuntimeError, match="ignore_index must be negative if the target contains probabilities"
    ):
        ops.cross_entropy(x, x, ignore_index=[0])
    with pytest.raises(IndexError, match="out of bounds"):
        ops.cross_entropy(x, torch.full((4,), 3))
    with pytest.raises(ValueError, match=r"shape \(3,\) does not broadcast to \(4,\)"):
        ops.cross_entropy(x, torch.zeros(4).long(), mask=torch.ones(3, dtype=torch.bool))
