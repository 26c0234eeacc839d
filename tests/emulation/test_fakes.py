"""Operators of libraries that have no kernel here: by their shape rules, by what a user gives, or refused."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import gapless
from gapless.analyze.verdicts.unseen import unknown_note
from gapless.errors import NotEmulated, UsageError
from gapless.model import Session
from gapless.model.session import decode, encode


class Library:
    """A library of operators with a name of its own."""

    def __init__(self) -> None:
        self.name = f"lib{uuid.uuid4().hex[:8]}"
        self._library = torch.library.Library(self.name, "DEF")

    def define(self, schema: str) -> str:
        self._library.define(schema)
        return f"{self.name}::{schema.partition('(')[0]}"

    def op(self, name: str) -> Any:
        return getattr(getattr(torch.ops, self.name), name)

    def kernel(self, name: str, function: Any, key: str) -> None:
        self._library.impl(name, function, key)

    def close(self) -> None:
        self._library._destroy()


@pytest.fixture
def library() -> Iterator[Library]:
    result = Library()
    yield result
    result.close()


def test_results_have_the_shapes_of_the_rule(library: Library) -> None:
    name = library.define("scan(Tensor x, int n) -> (Tensor, Tensor)")
    torch.library.register_fake(
        name, lambda x, n: (x.new_empty(x.shape[0], n), torch.empty(n, dtype=torch.int32, device=x.device))
    )
    with gapless.emulate(devices=2) as observed:
        x = torch.ones(3, 4, device="cuda:1", dtype=torch.bfloat16)
        for _ in range(2):
            a, b = library.op("scan")(x, 7)
        assert (a.shape, a.dtype, str(a.device)) == ((3, 7), torch.bfloat16, "cuda:1")
        assert (b.shape, b.dtype, str(b.device)) == ((7,), torch.int32, "cuda:1")
        assert not a.any()
        assert not b.any()
        (a.sum() * x.sum()).item()  # what follows runs
    notes = [note for note in observed.session.notes if name in note]
    assert len(notes) == 1
    assert "right shapes but are zeros" in notes[0]
    assert observed.session.unknown == (name,)


def test_what_it_writes_becomes_zeros(library: Library) -> None:
    name = library.define("norm_(Tensor(a!) out, Tensor x) -> Tensor(a!)")
    torch.library.register_fake(name, lambda out, x: out)
    library.define("fill(Tensor(a!) out, Tensor x) -> ()")
    torch.library.register_fake(f"{library.name}::fill", lambda out, x: None)
    with gapless.emulate():
        x = torch.ones(3, device="cuda")
        out = torch.full((3,), 7.0, device="cuda")
        assert library.op("norm_")(out, x) is out
        assert out.tolist() == [0, 0, 0]
        assert x.tolist() == [1, 1, 1]
        other = torch.full((2,), 7.0, device="cuda")
        library.op("fill")(other, x)
        assert other.tolist() == [0, 0]


def test_gradients_flow_by_its_own_formula(library: Library) -> None:
    name = library.define("double(Tensor x) -> Tensor")
    back = library.define("double_back(Tensor g) -> Tensor")
    for operator in (name, back):
        torch.library.register_fake(operator, torch.empty_like)
    torch.library.register_autograd(name, lambda ctx, g: library.op("double_back")(g))
    with gapless.emulate() as observed:
        x = torch.ones(3, device="cuda", requires_grad=True)
        library.op("double")(x).sum().backward()
        assert x.grad is not None
        assert x.grad.is_cuda
    assert observed.session.unknown == (name, back)


def test_one_with_nothing_is_refused_and_named(library: Library) -> None:
    name = library.define("magic(Tensor x) -> Tensor")
    with gapless.emulate():
        x = torch.ones(3, device="cuda")
        with pytest.raises(NotEmulated) as caught:
            library.op("magic")(x)
    said = str(caught.value)
    for part in (name, "no kernel", "no fake implementation", "register_fake", "gapless.standin", __file__):
        assert part in said
    assert "\n" not in said


def test_a_size_that_follows_from_values_is_refused(library: Library) -> None:
    name = library.define("keep(Tensor x) -> Tensor")

    @torch.library.register_fake(name)
    def fake(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(torch.library.get_ctx().new_dynamic_size())

    with gapless.emulate(), pytest.raises(NotEmulated, match="its fake implementation failed with"):
        library.op("keep")(torch.ones(3, device="cuda"))


def test_a_python_kernel_for_cuda_runs_and_falls_back_to_the_rule(library: Library) -> None:
    name = library.define("half(Tensor x) -> Tensor")
    torch.library.register_fake(name, torch.empty_like)
    library.kernel("half", lambda x: x / 2, "CUDA")
    other = library.define("third(Tensor x) -> Tensor")
    torch.library.register_fake(other, torch.empty_like)
    library.kernel("third", lambda x: x.__dlpack__(), "CUDA")
    with gapless.emulate() as observed:
        x = torch.ones(3, device="cuda")
        assert library.op("half")(x).tolist() == [0.5] * 3
        assert library.op("third")(x).tolist() == [0.0] * 3
    assert observed.session.unknown == (other,)


def test_on_the_host_nothing_changes(library: Library) -> None:
    library.define("plain(Tensor x) -> Tensor")
    torch.library.register_fake(f"{library.name}::plain", torch.empty_like)
    with gapless.emulate(), pytest.raises(NotImplementedError):
        library.op("plain")(torch.ones(3))


def test_a_user_gives_a_kernel_and_its_waits(library: Library) -> None:
    name = library.define("pick(Tensor x) -> Tensor")

    @gapless.standin(name, waits=2)
    def pick(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(1, device=x.device) + x[x > 0].sum().item()

    with gapless.emulate() as observed:
        x = torch.tensor([1.0, -1.0, 2.0], device="cuda")
        before = observed.waits
        out = library.op("pick")(x)
        assert observed.waits - before == 2  # what waits inside does not count
        assert out.is_cuda
        assert out.item() == 3
    assert observed.session.unknown == ()


@pytest.mark.parametrize("name", ["pick", "::pick", "lib::", ".pick"])
def test_a_name_that_names_nothing_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="library::name"):
        gapless.standin(name)


def test_unknown_operators_are_in_the_report_and_survive_saving() -> None:
    assert (
        unknown_note(["a::b"]) == "Whether a::b makes the CPU wait is not known: syncs in it are not counted"
    )
    assert "a::b, a::c, a::d and 2 other operators make" in unknown_note(
        ["a::b", "a::c", "a::d", "a::e", "a::f"]
    )
    session = Session(unknown=("a::b",))
    assert decode(encode(session)) == session
