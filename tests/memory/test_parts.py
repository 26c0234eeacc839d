"""What the memory at a moment is for, by kind and by the module that holds most of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.memory.nccl import cell, describe_remaining_room, note
from gapless.memory.parts import describe_parts, describe_room, parts
from gapless.model.memory import MemoryRun, Place
from gapless.model.memory_report import Buffers, MemoryReport, Moment, Outcome, Part

GIB = 1 << 30
PATHS = (
    "",
    "embed",
    "layers[0].mlp.up",
    "layers[1].mlp.up",
    "layers[0].mlp.down",
    "layers[0].attention.out",
    "layers[12].attention.out",
    "Model > Block > Attention",
)


def held(*rows: tuple[str, str, int]) -> tuple[Part, ...]:
    """The parts of allocations, each with its kind, its module and its bytes."""
    run = MemoryRun(places=tuple(Place(kind=kind, module=module) for kind, module, _ in rows))
    at = dict(enumerate(range(len(rows))))
    live = {number: size for number, (_, _, size) in enumerate(rows)}
    return parts(run, live, at, {number: kind for number, (kind, _, _) in enumerate(rows)})


def test_the_innermost_module_that_holds_half_is_named() -> None:
    (only_part,) = held(
        ("activation", "layers[0].mlp.up", 300),
        ("activation", "layers[1].mlp.down", 300),
        ("activation", "layers[0].attention", 250),
        ("activation", "head", 150),
    )
    assert (only_part.module, only_part.module_bytes, only_part.modules) == ("layers[*].mlp", 600, 2)
    assert (only_part.bytes, only_part.tensors) == (1000, 4)


def test_where_no_module_holds_half_none_is_named() -> None:
    (only_part,) = held(("activation", "a", 4), ("activation", "b", 4), ("activation", "c", 4))
    assert (only_part.module, only_part.module_bytes) == ("", 0)


def test_chains_of_forward_calls_are_no_paths() -> None:
    (only_part,) = held(("activation", "Model > Block > nn.Linear", 9), ("activation", "Model > Head", 1))
    assert only_part.module == "Model > Block > nn.Linear"


def test_weights_gradients_optimizer_and_activations_come_first() -> None:
    kinds = ("batch", "activation", "workspace", "optimizer", "gradient", "parameter")
    parts_held = held(*((kind, "", 10 + at) for at, kind in enumerate(kinds)))
    assert [part.kind for part in parts_held] == [
        "parameter", "gradient", "optimizer", "activation", "workspace", "batch",
    ]  # fmt: skip


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("parameter", "gradient", "activation", "temporary")),
            st.sampled_from(PATHS),
            st.integers(1, 1 << 40),
        ),
        min_size=1,
    )
)
def test_parts_add_up_and_a_named_module_holds_its_half(rows) -> None:
    parts_held = held(*rows)
    assert sum(part.bytes for part in parts_held) == sum(size for _, _, size in rows)
    assert sum(part.tensors for part in parts_held) == len(rows)
    for part in parts_held:
        assert (part.module_bytes >= part.bytes / 2) == bool(part.module)
        assert part.module_bytes <= part.bytes


def test_the_sentence_has_one_unit_and_leaves_out_what_is_next_to_nothing() -> None:
    moment = Moment(
        parts=(
            Part(kind="parameter", bytes=int(12.6 * GIB)),
            Part(kind="gradient", bytes=int(12.6 * GIB)),
            Part(kind="optimizer", bytes=int(25.1 * GIB)),
            Part(
                kind="activation", bytes=int(9.8 * GIB), module="layers[*].mlp", module_bytes=int(5.1 * GIB)
            ),
            Part(kind="batch", bytes=4096),
        )
    )
    assert describe_parts(moment) == (
        "weights 12.6 GiB, gradients 12.6, optimizer 25.1, activations 9.8 (of which `layers[*].mlp` 5.1)"
    )
    memory_report = MemoryReport(
        sentence="",
        gpu="NVIDIA A100-SXM4-80GB",
        limit=int(78.7 * GIB),
        baseline=Outcome(peak_reserved=int(66.7 * GIB), peak_allocated=int(61.9 * GIB)),
        peak=moment,
    )
    assert describe_room(memory_report) == (
        "peak 66.7 GiB reserved (61.9 allocated) of 78.7 on the A100-SXM4-80GB: fits; "
        + describe_parts(moment)
    )


@pytest.mark.parametrize("limit", [-1])
def test_nothing_is_said_to_fit_where_nothing_says_into_what(limit: int) -> None:
    assert describe_room(MemoryReport(sentence="", limit=limit, baseline=Outcome(peak_reserved=1))) == ""


@pytest.mark.parametrize(
    ("peak", "said"),
    [
        (70.0, "fits"),
        (77.6, "fits, with 1.1 GiB left for NCCL, which takes 1–1.5 GiB for 1 process group"),
        (
            78.6,
            "fits by itself, but the remaining 102 MiB are too little for NCCL (1–1.5 GiB for 1 "
            "process group)",
        ),
    ],
)
def test_what_fits_leaves_room_for_nccl(peak: float, said: str) -> None:
    memory_report = MemoryReport(
        sentence="",
        limit=int(78.7 * GIB),
        baseline=Outcome(peak_reserved=int(peak * GIB), peak_allocated=int(peak * GIB)),
        nccl=Buffers(groups=1, least=GIB, most=3 * GIB // 2),
    )
    assert describe_room(memory_report).endswith(f"of 78.7: {said}")


@given(st.booleans(), st.integers(0, 9), st.integers(1, 4), st.integers(0, 4))
def test_a_cell_and_its_note_agree_with_the_sentence(fits: bool, left: int, least: int, more: int) -> None:
    nccl = Buffers(groups=2, least=least, most=least + more)
    words, scarce = describe_remaining_room(nccl, left), note(nccl, [("it", left)])
    assert cell(fits, left, nccl) == ("no" if not fits else "by itself" if "too little" in words else "yes")
    assert bool(words) == bool(scarce) == (left < nccl.most)
    assert (cell(fits, left, None), describe_remaining_room(None, left), note(None, [("it", left)])) == (
        "yes" if fits else "no",
        "",
        "",
    )
