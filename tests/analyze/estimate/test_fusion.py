"""Compiled code in an estimate: what becomes one kernel, and what a step would be if it were compiled."""

from __future__ import annotations

import msgspec
import pytest

from gapless.analyze.estimate.fusion import FUSED_NAME, compile_step, count_kernels, fuse
from gapless.model.programme import Entry


def operator(name: str, *, size: int = 1024, compiled: bool = True, backward: bool = False) -> Entry:
    shape = (size,)
    return Entry(
        name=f"aten::{name}",
        dtype="float32",
        inputs=(shape, shape),
        outputs=(shape,),
        reads=8 * size,
        writes=4 * size,
        backward=backward,
        compiled=compiled,
    )


def names(*entries: Entry) -> list[str]:
    return [entry.name for entry in fuse(entries)]


def test_eager_code_stays_as_it_is() -> None:
    step = (operator("add", compiled=False), operator("mul", compiled=False), operator("sum", compiled=False))
    assert fuse(step) == step


def test_a_chain_is_one_kernel_and_what_lies_between_is_not_moved() -> None:
    (kernel,) = fuse((operator("add"), operator("relu"), operator("sum")))
    assert kernel.name == FUSED_NAME
    assert (kernel.reads, kernel.writes) == (8 * 1024 + 2 * 4 * 1024, 4 * 1024)


@pytest.mark.parametrize("other", ["addmm", "convolution", "sort", "cumsum", "index_put_"])
def test_what_is_no_chain_stays_and_parts_two(other: str) -> None:
    assert names(operator("add"), operator("mul"), operator(other), operator("add"), operator("mul")) == [
        FUSED_NAME,
        f"aten::{other}",
        FUSED_NAME,
    ]


def test_waits_other_sizes_and_the_backward_pass_part_chains() -> None:
    add = operator("add")
    wait = Entry(kind="wait", name="aten::_local_scalar_dense", mechanism="read", waits=1)
    assert names(add, add, wait, add, add) == [FUSED_NAME, "aten::_local_scalar_dense", FUSED_NAME]
    assert names(add, operator("add", size=2048)) == ["aten::add", "aten::add"]
    assert names(add, operator("add", backward=True)) == ["aten::add", "aten::add"]


def test_fusing_again_changes_nothing() -> None:
    step = (operator("add"), operator("mul"), operator("addmm"), operator("mul"))
    assert fuse(fuse(step)) == fuse(step)


def test_an_optimizer_is_not_taken_to_be_compiled() -> None:
    step = (operator("add", compiled=False), Entry(name="aten::_foreach_add_", optimizer=True))
    assert [entry.compiled for entry in compile_step(step)] == [True, False]


def test_compiling_never_adds_kernels() -> None:
    step = tuple(operator(name, compiled=False) for name in ("add", "addmm", "relu", "sum", "mul", "sort"))
    assert count_kernels([fuse(compile_step(step))]) < count_kernels([step])


def test_what_a_norm_computes_with_its_rows_is_in_its_kernel() -> None:
    rows, whole = (8, 1), (8, 64)
    mean = Entry(name="aten::mean", inputs=(whole,), outputs=(rows,), compiled=True)
    root = Entry(name="aten::rsqrt", inputs=(rows,), outputs=(rows,), compiled=True)
    scaled = Entry(name="aten::mul", inputs=(whole, rows), outputs=(whole,), compiled=True)
    assert names(mean, root, scaled) == [FUSED_NAME]
    # A single number is known only when all of it has been gone through: what follows is another kernel.
    total, number = (msgspec.structs.replace(each, outputs=((1,),)) for each in (mean, root))
    assert len(names(total, msgspec.structs.replace(number, inputs=((1,),)), scaled)) == 3
