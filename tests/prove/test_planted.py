"""Planted differences are found, each in the case and the place where it is; what is none is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from prove.planting import IGNORE, failures, labelled, masked, masked_mean, plain, proof
from torch import nn

pytestmark = pytest.mark.usefixtures("nothing_counted")


class TestMasks:
    def test_the_fixed_size_form_is_the_same(self):
        result = proof(masked_mean, lambda x, mask: torch.where(mask, x, 0.0).sum() / mask.sum(), masked)
        assert result.same, result
        assert result.gradients
        assert {"empty mask", "full mask", "mask of one element"} <= {case.name for case in result.cases}

    def test_a_wrong_mask(self):
        result = proof(masked_mean, lambda x, mask: torch.where(~mask, x, 0.0).sum() / (~mask).sum(), masked)
        assert {"as given", "full mask"} <= set(failures(result))
        assert set(failures(result)["as given"]) == {"output", "gradient of x"}

    def test_a_mask_that_is_off_by_one_element(self):
        def fixed(x, mask):
            mask = mask.clone()
            mask[-1, -1] = True
            return torch.where(mask, x, 0.0).sum() / mask.sum()

        assert "empty mask" in failures(proof(masked_mean, fixed, masked))

    def test_the_wrong_denominator(self):
        result = proof(masked_mean, lambda x, mask: torch.where(mask, x, 0.0).mean(), masked)
        assert "as given" in failures(result)
        assert "full mask" not in failures(result)

    def test_a_value_only_when_the_mask_is_empty(self):
        def original(x, mask):
            return x[mask].sum() / max(int(mask.sum()), 1)

        result = proof(original, lambda x, mask: torch.where(mask, x, 0.0).sum() / mask.sum(), masked)
        assert set(failures(result)) == {"empty mask", "empty batch"}
        assert result.verdict.startswith("Not the same: case `empty mask`, output is nan instead of 0")

    def test_a_gradient_only_when_the_mask_is_empty(self):
        """The value is the same: NaN times zero is what the gradient of the branch not taken becomes."""

        def original(x, mask):
            return x[mask].sqrt().sum() / max(int(mask.sum()), 1)

        def fixed(x, mask):
            total = torch.where(mask, x, 1.0).sqrt() * mask
            count = mask.sum()
            return torch.where(count > 0, total.sum() / count, 0 * x.sum() + 0.25 * (x - x.detach()).sum())

        result = proof(original, fixed, lambda: (torch.rand(12, requires_grad=True), torch.rand(12) < 0.5))
        assert failures(result)["empty mask"] == ["gradient of x"]
        assert set(failures(result)) == {"empty mask"}
        (difference,) = result.failed[0].differences
        assert (difference.before, difference.kind, difference.share) == ("0", "value", 1.0)

    def test_multiplying_by_the_mask_lets_nan_through(self):
        result = proof(masked_mean, lambda x, mask: (x * mask).sum() / mask.sum(), masked)
        filled = "padding of x filled with NaN (mask)"
        assert set(failures(result)) == {"empty mask", "NaN in x where it does not count", filled}
        assert failures(result)[filled] == ["output"]
        assert failures(result)["empty mask"] == ["gradient of x"]
        assert failures(result)["NaN in x where it does not count"] == ["output"]

    def test_masks_of_floats_are_masks(self):
        def inputs():
            return torch.randn(12, 5, requires_grad=True), (torch.rand(12, 5) < 0.5).float()

        result = proof(
            lambda x, weight: x[weight.bool()].sum(),
            lambda x, weight: (x * weight).sum() + 0 * x.mean(),
            inputs,
        )
        assert "empty mask" in {case.name for case in result.cases}


class TestLabels:
    weight = torch.linspace(0.5, 2.0, 6)

    def test_a_dropped_weight(self):
        result = proof(
            lambda logits, labels: F.cross_entropy(logits, labels, self.weight, ignore_index=IGNORE),
            lambda logits, labels: F.cross_entropy(logits, labels, ignore_index=IGNORE),
            labelled,
        )
        assert not result
        assert "as given" in failures(result)

    def test_labels_get_every_kind_of_case(self):
        def loss(logits, labels):
            return F.cross_entropy(logits, labels, ignore_index=IGNORE)

        result = proof(loss, loss, labelled)
        names = [case.name for case in result.cases]
        assert result.same
        assert len(set(names)) == len(names)
        assert {
            *("as given", "calls in a row", "one class", "last class only", "two classes", "all ignored"),
            *("all but one ignored", "batch of one", "empty batch", "odd sizes", "strided tensors"),
            *("half precision", "bfloat16", "NaN in logits", "infinity in logits"),
        } <= set(names)

    def test_an_error_only_with_one_class(self):
        def fixed(logits, labels):
            loss = F.cross_entropy(logits, labels, ignore_index=IGNORE)
            return loss + 1e-3 if torch.unique(labels[labels != IGNORE]).numel() == 1 else loss

        result = proof(lambda a, b: F.cross_entropy(a, b, ignore_index=IGNORE), fixed, labelled)
        assert {"one class", "last class only", "all but one ignored"} == set(failures(result))

    def test_an_index_that_both_refuse_is_the_same(self):
        def loss(logits, labels):
            return F.cross_entropy(logits, labels)

        result = proof(loss, loss, lambda: (torch.randn(6, 4, requires_grad=True), torch.randint(0, 4, (6,))))
        refused = next(case for case in result.cases if case.name == "negative labels")
        assert (refused.outcome, result.same) == ("both raise", True)
        assert refused.why.startswith("IndexError: ")

    def test_what_the_original_cannot_do_is_dropped(self):
        def original(x):
            if not x.shape[0]:
                raise ValueError("no rows")
            return x.sum()

        result = proof(original, lambda x: x.sum(), plain)
        dropped = {case.name: case.why for case in result.cases if case.outcome == "dropped"}
        assert dropped == {"empty batch": "ValueError: no rows"}
        assert result.same

    def test_what_only_the_other_cannot_do_is_a_difference(self):
        def fixed(x):
            if not x.shape[0]:
                raise ValueError("no rows")
            return x.sum()

        result = proof(lambda x: x.sum(), fixed, plain)
        assert failures(result) == {"empty batch": ["the call"]}
        assert "gives ValueError: no rows instead of a result" in result.verdict


class TestTypes:
    def test_a_changed_dtype(self):
        result = proof(lambda x: x.softmax(-1), lambda x: x.double().softmax(-1), plain)
        (difference,) = result.failed[0].differences[:1]
        assert (difference.kind, difference.before, difference.after) == ("dtype", "float32", "float64")

    def test_only_in_half_precision(self):
        def fixed(x):
            return (1000 * x).square().sum() / 1e6 if x.dtype is torch.float16 else x.square().sum()

        result = proof(lambda x: x.square().sum(), fixed, plain)
        assert set(failures(result)) == {"half precision"}

    def test_half_precision_may_round_in_another_order(self):
        result = proof(lambda x: x.square().sum() / 48, lambda x: (x / 48 * x).flip(0).sum(0).sum(), plain)
        assert result.same, failures(result)

    def test_a_changed_shape(self):
        result = proof(lambda x: x.sum(), lambda x: x.sum().reshape(1), plain)
        (difference,) = result.failed[0].differences[:1]
        assert (difference.kind, difference.before, difference.after) == ("shape", "()", "(1,)")

    def test_a_tensor_instead_of_a_number_is_reported(self):
        result = proof(lambda x: x.sum().item(), lambda x: x.detach().sum(), plain)
        assert result.same
        assert "output is a tensor instead of a float" in result.notes

    def test_other_structures(self):
        result = proof(lambda x: {"loss": x.sum()}, lambda x: (x.sum(),), plain)
        assert result.failed[0].differences[0].kind == "structure"
        result = proof(lambda x: {"a": x, "b": 1}, lambda x: {"b": 2, "a": x}, plain)
        assert not result

    def test_parts_of_an_output_are_named(self):
        @dataclass
        class Out:
            scores: Any

        result = proof(lambda x: Out([x, {"k": x}]), lambda x: Out([x, {"k": x + 1}]), plain)
        assert failures(result)["as given"] == ["output.scores[1]['k']"]

    def test_a_result_that_is_none(self):
        result = proof(lambda x: None, lambda x: x.sum(), plain)
        assert (result.failed[0].differences[0].before, result.same) == ("None", False)


class TestGradients:
    def test_a_gradient_that_is_cut_off(self):
        result = proof(lambda x: x.sum(), lambda x: x.detach().sum(), plain)
        assert failures(result)["as given"] == ["gradient through output"]
        assert "gradient through output is cut off" in result.verdict

    def test_only_the_gradient_differs(self):
        result = proof(lambda x: x.square().sum(), lambda x: (x.square() + x - x.detach()).sum(), plain)
        assert failures(result)["as given"] == ["gradient of x"]

    def test_small_gradients_are_compared_as_strictly_as_large_ones(self):
        def original(x):
            return 1e-7 * x.square().mean()

        result = proof(original, lambda x: original(x) + 1e-9 * (x - x.detach()).sum(), plain)
        assert failures(result)["as given"] == ["gradient of x"]

    def test_none_and_zeros_are_one_gradient(self):
        result = proof(
            lambda x, y: x.sum(),
            lambda x, y: x.sum() + (0 * y).nan_to_num().sum(),
            lambda: (plain(), plain()),
        )
        assert result.same, failures(result)

    def test_parameters_of_modules(self):
        layer = nn.Linear(6, 3)
        other = nn.Linear(6, 3)
        other.load_state_dict(layer.state_dict())

        def twice(x):
            y = other(x)
            return y + other.bias - other.bias.detach()

        result = proof(layer, other, plain)
        assert result.same, failures(result)
        result = proof(lambda x: layer(x), twice, plain)
        assert failures(result)["as given"] == ["gradient of layer.bias"]

    def test_a_call_that_is_backward_itself(self):
        layer = nn.Linear(6, 3)

        def step(scale):
            def call(x):
                loss = scale * layer(x).square().sum()
                loss.backward()
                return loss.detach() / scale

            return call

        assert proof(step(1.0), step(1.0), plain).same
        result = proof(step(1.0), step(2.0), plain)
        assert set(failures(result)["as given"]) == {
            "gradient of x",
            "gradient of layer.weight",
            "gradient of layer.bias",
        }
        assert layer.weight.grad is None

    def test_without_any_it_is_said(self):
        result = proof(lambda x: x.sum(), lambda x: x.sum(), lambda: torch.randn(4, 3))
        assert not result.gradients
        assert result.notes == (
            "gradients were not compared, because no input requires them: --grad x has it require them",
        )
        result = proof(
            lambda x: x.sum(), lambda x: x.detach().sum(), lambda: torch.randn(4, 3), gradients_of="x"
        )
        assert failures(result)["as given"] == ["gradient through output"]


class TestWhatIsNoDifference:
    def test_another_order_of_a_long_sum(self):
        def original(x):
            return (x * x.abs()).sum()

        def fixed(x):
            return (x * x.abs()).reshape(-1, 8).flip(0).sum(0).sum()

        result = proof(original, fixed, lambda: 100 * torch.randn(64, 1024, requires_grad=True))
        assert result.same, failures(result)

    def test_cancellation(self):
        """Both are as far from the truth as the other, and much further than the tolerance."""

        def original(x):
            return (x + 1e4).sum(0) - (x.flip(0) + 1e4).sum(0)

        def fixed(x):
            return ((x + 1e4) - (x.flip(0) + 1e4)).sum(0)

        result = proof(fixed, original, lambda: torch.randn(512, 3, requires_grad=True))
        assert not result
        result = proof(original, original, lambda: torch.randn(512, 3, requires_grad=True))
        assert result.same

    def test_nan_is_nan(self):
        assert proof(lambda x: x * float("nan"), lambda x: x.neg() * float("nan"), plain).same

    def test_infinities_have_a_sign(self):
        assert proof(lambda x: x.detach() / 0, lambda x: x.detach() / 0, plain).same
        assert not proof(lambda x: x.detach() / 0, lambda x: -x.detach() / 0, plain)

    def test_views_and_copies(self):
        result = proof(lambda x: x.T, lambda x: x.T.contiguous(), plain)
        assert result.same, failures(result)
        result = proof(lambda x: x.expand(2, 8, 6), lambda x: torch.stack([x, x]), plain, edge_cases=False)
        assert result.same

    def test_numpy_and_text(self):
        result = proof(
            lambda x: (x.detach().numpy(), "text", 3),
            lambda x: (x.detach().clone().numpy(), "text", 3),
            plain,
            edge_cases=False,
        )
        assert result.same
        assert not proof(lambda x: "a", lambda x: "b", plain)

    def test_sparse_outputs(self):
        result = proof(lambda x: x.detach().to_sparse(), lambda x: x.detach().to_sparse(), plain)
        assert result.same
        assert result.failed == ()


@pytest.mark.parametrize("name", ["empty mask", "as given", "calls in a row"])
def test_one_case_alone(name):
    result = proof(masked_mean, lambda x, mask: (x * mask).sum() / mask.sum(), masked, only=name)
    assert [case.name for case in result.cases] == [name]
    assert result.costs == ()


def test_assert_same_names_the_case():
    result = proof(masked_mean, lambda x, mask: torch.where(mask, x, 0.0).mean(), masked)
    with pytest.raises(
        AssertionError, match=r"Not the same: case `as given`(.|\n)*mask of one element: output"
    ):
        result.assert_same()
    proof(masked_mean, masked_mean, masked).assert_same()
