"""What users may give as inputs, and the edge cases that are made from them."""

from __future__ import annotations

import functools
from collections import namedtuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gapless.errors import UsageError
from gapless.prove.cases import cast, edge_cases
from gapless.prove.inputs import MAX_INPUTS, added_from, inputs_from
from gapless.prove.recognise import recognise_input


def loss(logits, labels, weight=None, *, ignore_index=-100):
    return logits.sum()


X, Y = torch.ones(2, 3), torch.zeros(2, dtype=torch.long)


def shapes(source, target=loss):
    return [
        ([tuple(argument.shape) for argument in result.args], sorted(result.kwargs), result.name)
        for result in inputs_from(source, target, 0)
    ]


class TestForms:
    @pytest.mark.parametrize(
        ("source", "expected"),
        [
            (X, [([(2, 3)], [], "as given")]),
            ((X, Y), [([(2, 3), (2,)], [], "as given")]),
            ({"logits": X, "labels": Y}, [([], ["labels", "logits"], "as given")]),
            (((X,), {"labels": Y}), [([(2, 3)], ["labels"], "as given")]),
            ([X, X], [([(2, 3)], [], "input 1"), ([(2, 3)], [], "input 2")]),
            ([(X, Y)], [([(2, 3), (2,)], [], "as given")]),
            ([[X, Y], [X, Y]], [([(2, 3), (2,)], [], "input 1"), ([(2, 3), (2,)], [], "input 2")]),
        ],
        ids=["tensor", "tuple", "keywords", "both", "list", "list-of-one", "as-a-loader-gives"],
    )
    def test_forms(self, source, expected):
        assert shapes(source) == expected
        assert shapes(lambda: source) == expected

    def test_generators_end(self):
        def endless():
            while True:
                yield X, Y

        assert len(shapes(endless)) == MAX_INPUTS

    def test_a_dict_that_no_parameters_match_is_one_argument(self):
        result = inputs_from({"image": X}, lambda batch: batch, 0)
        assert result[0].args == ({"image": X},)
        assert [path for path, _ in result[0].tensors()] == ["batch['image']"]

    def test_a_named_tuple_is_one_argument(self):
        batch = namedtuple("Batch", "x y")(X, Y)
        (result,) = inputs_from(batch, lambda batch: batch, 0)
        assert [path for path, _ in result.tensors()] == ["batch.x", "batch.y"]

    def test_computed_inputs_become_leaves(self):
        x = torch.ones(3, requires_grad=True) * 2
        (result,) = inputs_from(x, lambda x: x, 0)
        assert result.args[0].is_leaf
        assert result.args[0].requires_grad

    @pytest.mark.parametrize(
        ("source", "words"),
        [
            (3, "the inputs are of type int"),
            ("text", "the inputs are of type str"),
            ([], "the inputs are empty"),
        ],
    )
    def test_what_is_none(self, source, words):
        with pytest.raises(UsageError, match=words):
            inputs_from(source, loss, 0)

    def test_they_are_drawn_from_the_seed(self):
        def random():
            return torch.randn(3)

        first, same, other = (inputs_from(random, loss, seed)[0].args[0] for seed in (1, 1, 2))
        assert torch.equal(first, same)
        assert not torch.equal(first, other)

    def test_added_cases_have_names(self):
        (result,) = added_from({"all zero": (X, Y)}, loss, 0)
        assert (result.name, result.made, len(result.args)) == ("all zero", "added", 2)
        with pytest.raises(UsageError, match="give a dict from names to inputs"):
            added_from([X], loss, 0)

    def test_gradients_of(self):
        (result,) = inputs_from({"logits": X, "labels": Y}, loss, 0, ("logits",))
        assert result.kwargs["logits"].requires_grad
        assert not X.requires_grad
        with pytest.raises(
            UsageError, match=r"there is no floating-point tensor 'labels' to take .* \(available: logits\)"
        ):
            inputs_from({"logits": X, "labels": Y}, loss, 0, ("labels",))

    def test_copies_share_what_the_inputs_share(self):
        x = torch.arange(6.0)
        (result,) = inputs_from((x, x[::2]), lambda a, b: a, 0)
        a, b = result.fresh().args
        a[0] = 9
        assert b[0] == 9
        assert x[0] == 0
        assert b.stride() == (2,)


def cases(source, target=loss):
    (result,) = inputs_from(source, target, 0)
    return {name: make() for name, make in edge_cases(result, recognise_input(result, target))}


class TestEdgeCases:
    def test_which_label_is_ignored_is_found(self):
        labels = torch.tensor([0, 1, 2, 255])
        assert (
            cases((X, labels), functools.partial(loss, ignore_index=255))["all ignored"].args[1].tolist()
            == [255] * 4
        )
        (call_input,) = inputs_from((X, torch.tensor([0, -7, 1])), loss, 0)
        assert recognise_input(call_input, loss).labels[0].ignored == -7
        module = nn.CrossEntropyLoss(ignore_index=1)
        assert (
            cases((torch.ones(3, 4), torch.tensor([0, 1, 2])), module)["all ignored"].args[1].tolist()
            == [1] * 3
        )

    def test_labels(self):
        by_name = cases((torch.randn(5, 3), torch.tensor([0, 1, 2, -100, 1])))
        values = {
            name: by_name[name].args[1].tolist() for name in ("one class", "last class only", "two classes")
        }
        assert values == {
            "one class": [0] * 5,
            "last class only": [2] * 5,
            "two classes": [0, 2, 0, 2, 0],
        }
        assert by_name["all but one ignored"].args[1].tolist() == [-100, -100, 0, -100, -100]
        assert "negative labels" not in by_name

    def test_several_masks_are_distinguished(self):
        mask = torch.tensor([True, False])
        by_name = cases((mask, mask.clone()), lambda rows, columns: rows)
        assert by_name["empty mask rows"].args[0].tolist() == [False, False]
        assert by_name["empty mask rows"].args[1].tolist() == [True, False]
        assert by_name["full mask columns"].args[1].tolist() == [True, True]

    def test_sizes(self):
        result = cases((torch.randn(4, 3, 8, 7), torch.zeros(4, 8, 7, dtype=torch.long)))
        shape = {
            name: tuple(result[name].args[0].shape) for name in ("batch of one", "empty batch", "odd sizes")
        }
        assert shape == {
            "batch of one": (1, 3, 8, 7),
            "empty batch": (0, 3, 8, 7),
            "odd sizes": (3, 3, 7, 5),
        }
        assert tuple(result["odd sizes"].args[1].shape) == (3, 7, 5)
        result = cases((torch.randn(4, 6, 5), torch.zeros(4, 6, dtype=torch.long)))
        assert tuple(result["odd sizes"].args[0].shape) == (3, 5, 5)
        result = cases(torch.randn(5))
        assert tuple(result["odd sizes"].args[0].shape) == (3,)

    def test_strides(self):
        x = torch.randn(3, 4, requires_grad=True)
        result = cases(x)["strided tensors"].args[0]
        assert torch.equal(result, x)
        assert not result.is_contiguous()
        assert result.requires_grad
        assert result.is_leaf

    def test_types(self):
        result = cases((torch.randn(2, 3, requires_grad=True), Y))
        assert result["half precision"].args[0].dtype is torch.float16
        assert result["half precision"].args[0].requires_grad
        assert result["bfloat16"].args[1].dtype is torch.int64
        assert result["bfloat16"].dtype is torch.bfloat16

    def test_nan_goes_where_it_counts_and_where_it_does_not(self):
        labels = torch.tensor([[1, 2], [-100, 1]])
        result = cases((torch.randn(2, 4, 2), labels))
        counted, ignored = result["NaN in logits"], result["NaN in logits where it does not count"]
        for case, label in ((counted, 1), (ignored, -100)):
            (at,) = case.args[0].isnan().nonzero().tolist()
            assert case.args[1][at[0], at[2]] == label
            assert case.args[0].isnan().sum() == 1
        assert result["infinity in logits"].args[0].isinf().sum() == 1

    def test_nothing_is_made_of_nothing(self):
        assert cases(lambda: [(3,)], lambda n: n) == {}

    @settings(max_examples=40, deadline=None)
    @given(
        st.lists(st.integers(0, 4), max_size=4),
        st.sampled_from([torch.float32, torch.bool, torch.int64, torch.uint8, torch.complex64]),
        st.integers(0, 99),
    )
    def test_every_case_of_any_input_can_be_made_and_changes_nothing(self, shape, dtype, seed):
        torch.manual_seed(seed)
        x = (torch.randn(shape) * 3).to(dtype)
        y = torch.randint(-1, 3, shape[:1])
        before = x.clone(), y.clone()
        result = cases((x, y))
        assert all(case.made == "edge" and case.name == name for name, case in result.items())
        assert torch.equal(x, before[0])
        assert torch.equal(y, before[1])
        assert all(dict(case.tensors()).keys() == {"logits", "labels"} for case in result.values())

    def test_they_are_the_same_every_time(self):
        source = (torch.randn(6, 3), torch.randint(-1, 3, (6,)))
        first, other = cases(source), cases(source)
        assert list(first) == list(other)
        for name, case in first.items():
            for (_, a), (_, b) in zip(case.tensors(), other[name].tensors(), strict=True):
                assert torch.equal(a.nan_to_num(7), b.nan_to_num(7))


def test_casting_leaves_whole_numbers():
    (call_input,) = inputs_from((X, Y), loss, 0)
    result = cast(call_input, torch.float64)
    assert [tensor.dtype for _, tensor in result.tensors()] == [torch.float64, torch.int64]
