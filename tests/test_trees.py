"""Trees of tensors: what is found in them, and copies with other leaves."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from gapless import trees  # noqa: E402
from gapless.transfer import Reading  # noqa: E402

Pair = namedtuple("Pair", "first second")


@dataclasses.dataclass(frozen=True)
class Sample:
    image: Any
    label: Any = dataclasses.field(default=None, init=False)


def sample(image: Any, label: Any) -> Sample:
    original = Sample(image)
    object.__setattr__(original, "label", label)
    return original


leaves = st.integers(-9, 9).map(torch.tensor) | st.integers() | st.text(max_size=2) | st.none()
nested = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3).map(OrderedDict)
        | st.tuples(inner, inner).map(lambda two: Pair(*two))
        | st.tuples(inner, inner).map(lambda two: sample(*two))
    ),
    max_leaves=8,
)


@given(nested)
def test_a_copy_is_of_the_same_form_and_holds_the_changed_tensors_in_order(value):
    numbers = [tensor.item() for tensor in trees.tensors(value)]
    changed = trees.map_tensors(value, lambda tensor: tensor + 1)
    assert [tensor.item() for tensor in trees.tensors(changed)] == [number + 1 for number in numbers]
    assert type(changed) is type(value)
    assert repr(trees.map_tensors(changed, lambda tensor: tensor - 1)) == repr(value)


@given(nested)
def test_a_reading_has_the_form_of_what_was_read(value):
    reading = Reading(value)
    assert reading.ready()
    assert repr(reading.result()) == repr(value) == repr(reading.result())


def test_what_is_read_is_what_was_there_then():
    value = {"loss": torch.ones(2, requires_grad=True), "steps": torch.tensor(3)}
    reading = Reading(value)
    with torch.no_grad():
        value["loss"].zero_()
    values = reading.result()
    assert values["loss"].tolist() == [1.0, 1.0]
    assert not values["loss"].requires_grad
    assert values["steps"].item() == 3


def test_other_leaves_can_be_changed_too_and_what_cannot_be_written_becomes_a_dict():
    frozen = MappingProxyType({"a": torch.tensor(1), "b": "text"})
    assert trees.map_tensors(frozen, torch.Tensor.item, str.upper) == {"a": 1, "b": "TEXT"}
