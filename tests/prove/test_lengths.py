"""Lengths, offsets and indices are told from labels, and what lies beyond a length does not count."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from gapless.prove import compare
from gapless.prove.cases import edge_cases
from gapless.prove.inputs import Input, inputs_from
from gapless.prove.recognise import RecognisedInput, recognise_input

pytestmark = pytest.mark.usefixtures("nothing_counted")


def recognise(**arguments: Tensor) -> RecognisedInput:
    (call_input,) = inputs_from(((), arguments), lambda **any_of_them: None, 0)
    return recognise_input(call_input, lambda **any_of_them: None)


def limits(**arguments: Tensor) -> list[tuple[str, str, str, int]]:
    return [(length.path, length.kind, length.of, length.dim) for length in recognise(**arguments).lengths]


X = torch.randn(4, 6, 3)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"x": X, "lengths": torch.tensor([6, 2, 5, 1])}, [("lengths", "lengths", "x", 1)]),
        ({"x": X, "seq_len": torch.tensor([3, 2, 5, 1])}, [("seq_len", "lengths", "x", 1)]),
        ({"x": X, "src_lens": torch.tensor([3, 2, 0, 1])}, [("src_lens", "lengths", "x", 1)]),
        ({"x": X.transpose(0, 1), "lengths": torch.tensor([6, 2, 5, 1])}, [("lengths", "lengths", "x", 0)]),
        ({"x": X, "n": torch.tensor([6, 2, 5, 1])}, [("n", "lengths", "x", 1)]),
        ({"flat": torch.randn(9, 3), "cu_seqlens": torch.tensor([0, 4, 9])},
         [("cu_seqlens", "offsets", "flat", 0)]),
        ({"x": X, "index": torch.tensor([5, 0])}, [("index", "indices", "x", 1)]),
        ({"logits": torch.randn(4, 6), "labels": torch.tensor([5, 2, 0, 1])}, []),
        ({"logits": torch.randn(4, 6), "labels": torch.tensor([1, 2, 3, 1])}, []),
        ({"x": X, "lengths": torch.tensor([7, 2, 5, 1])}, []),
        ({"x": X, "lengths": torch.tensor([6, 2, -5, 1])}, []),
        ({"flat": torch.randn(9, 3), "offsets": torch.tensor([0, 6, 4, 9])}, []),
    ],
)  # fmt: skip
def test_what_limits_another_tensor_is_known(arguments: dict[str, Tensor], expected: list[Any]) -> None:
    assert limits(**arguments) == expected
    cache = recognise(**arguments)
    assert not {length.path for length in cache.labels} & {length.path for length in cache.lengths}


def test_a_label_that_is_ignored_is_no_length() -> None:
    def loss(logits: Tensor, labels: Tensor, ignore_index: int = 6) -> Tensor:
        return logits.sum()

    (call_input,) = inputs_from((torch.randn(4, 6), torch.tensor([6, 2, 5, 1])), loss, 0)
    results = recognise_input(call_input, loss)
    assert (results.lengths, results.labels[0].ignored) == ((), 6)


def summed(x: Tensor, lengths: Tensor) -> Tensor:
    return torch.stack([row[:length].sum(0) for row, length in zip(x, lengths.tolist(), strict=True)])


def make_arguments() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 6, 3, requires_grad=True), torch.tensor([6, 2, 5, 1])


def cases() -> dict[str, Input]:
    (first,) = inputs_from(make_arguments, summed, 0)
    return {name: make() for name, make in edge_cases(first, recognise_input(first, summed))}


def test_cases() -> None:
    result = cases()
    values = {
        name: result[name].args[1].tolist()
        for name in ("full lengths", "lengths of one", "a length of zero", "long and short in turn")
    }
    assert values == {
        "full lengths": [6] * 4,
        "lengths of one": [1] * 4,
        "a length of zero": [0, 2, 5, 1],
        "long and short in turn": [6, 3, 6, 3],
    }
    assert not {"one class", "negative labels"} & set(result)
    odd = result["odd sizes"]
    assert tuple(odd.args[0].shape) == (3, 6, 3) or odd.args[1].max() <= odd.args[0].shape[1]
    filled = result["padding of x filled with NaN (lengths)"]
    assert filled.args[0].isnan().sum(1)[:, 0].tolist() == [0, 4, 1, 5]
    assert filled.args[0].requires_grad


def test_lengths_follow_the_sizes() -> None:
    def two(x: Tensor, y: Tensor, lengths: Tensor) -> Tensor:
        return x.sum()

    (first,) = inputs_from((torch.randn(4, 6), torch.randn(4, 6), torch.tensor([6, 2, 5, 1])), two, 0)
    result = {name: make() for name, make in edge_cases(first, recognise_input(first, two))}
    assert tuple(result["odd sizes"].args[0].shape) == (3, 5)
    assert result["odd sizes"].args[2].tolist() == [5, 2, 5]


def test_what_reads_the_padding_is_not_the_same() -> None:
    def multiplied(x: Tensor, lengths: Tensor) -> Tensor:
        inside = torch.arange(x.shape[1]) < lengths[:, None]
        return (x * inside[..., None]).sum(1)

    def chosen(x: Tensor, lengths: Tensor) -> Tensor:
        inside = torch.arange(x.shape[1]) < lengths[:, None]
        return torch.where(inside[..., None], x, 0.0).sum(1)

    result = compare(summed, multiplied, make_arguments, seconds=0)
    failing = [case.name for case in result.failed]
    assert "padding of x filled with NaN (lengths)" in failing
    assert "as given" not in failing
    assert compare(summed, chosen, make_arguments, seconds=0).same


def test_padding_by_a_mask_that_is_named_for_it() -> None:
    def mean(x: Tensor, padding_mask: Tensor) -> Tensor:
        return x.sum()

    padding = torch.zeros(2, 4, dtype=torch.bool)
    padding[1, 2:] = True
    (first,) = inputs_from((torch.randn(2, 4, 3), padding), mean, 0)
    result = {name: make() for name, make in edge_cases(first, recognise_input(first, mean))}
    filled = result["padding of x filled with NaN (padding_mask)"].args[0]
    assert torch.equal(filled.isnan().any(-1), padding)


def test_lengths_that_must_fall_drop_the_cases_that_do_not() -> None:
    def packed(x: Tensor, lengths: Tensor) -> Tensor:
        return pack_padded_sequence(x, lengths, batch_first=True).data.sum()

    def falling() -> tuple[Tensor, Tensor]:
        return torch.randn(3, 6, 2), torch.tensor([6, 4, 1])

    result = compare(packed, packed, falling, seconds=0)
    outcome = {case.name: case.outcome for case in result.cases}
    assert result.same
    assert outcome["long and short in turn"] == "both raise"
    assert outcome["full lengths"] == outcome["padding of x filled with NaN (lengths)"] == "same"
