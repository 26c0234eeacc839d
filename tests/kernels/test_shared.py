"""Shared memory, as Gluon's kernels write it: what a program puts there, it reads again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from kernels.ttir import run

from gapless.kernels.evaluate import Kernel, Unsupported, evaluate

BLOCK = "tensor<8x16xf32>"
PLACES = "tensor<8x16xi32>"


def room(of: str) -> str:
    """The type of a room."""
    return f"!ttg.memdesc<{of}, #shared, #smem, mutable>"


def load(name: str, of: str) -> str:
    return f"%y0 = ttg.local_load {name} : {room(of)} -> tensor<{of}>"


HERE = room("8x16xf32")
PART = "!ttg.memdesc<4x8xf32, #shared, #smem, mutable, 8x16>"
PUT = f"%r = ttg.local_alloc %x0 : ({BLOCK}) -> {HERE}"


@pytest.mark.parametrize(
    ("body", "of", "expected"),
    [
        (
            f"%v = ttg.memdesc_trans %r {{order = array<i32: 1, 0>}} : {HERE} -> {room('16x8xf32')}",
            "16x8xf32",
            lambda x: x.T,
        ),
        (
            f"%v = ttg.memdesc_subslice %r[2, 4] : {HERE} -> {PART}",
            "4x8xf32",
            lambda x: x[2:6, 4:12],
        ),
        (
            f"%v = ttg.memdesc_reshape %r : {HERE} -> {room('4x32xf32')}",
            "4x32xf32",
            lambda x: x.view(4, 32),
        ),
        (
            f"%v = ttg.memdesc_reinterpret %r : {HERE} -> {room('8x16xi32')}",
            "8x16xi32",
            lambda x: x.view(torch.int32),
        ),
    ],
    ids=["other axes", "a part", "other sizes", "other elements"],
)
def test_a_view_reads_what_the_room_holds(
    body: str, of: str, expected: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    x = torch.randn(8, 16)
    wanted = expected(x)
    output = torch.zeros(wanted.shape, dtype=wanted.dtype)
    run([x], [output], [PUT, body, load("%v", of)])
    assert torch.equal(output, wanted)


def test_what_is_written_through_a_view_is_read_through_the_room() -> None:
    x, part = torch.randn(8, 16), torch.randn(4, 8)
    body = [
        PUT,
        f"%v = ttg.memdesc_subslice %r[2, 4] : {HERE} -> {PART}",
        f"ttg.local_store %x1, %v : tensor<4x8xf32> -> {PART}",
        load("%r", "8x16xf32"),
    ]
    output = run([x, part], [torch.zeros(8, 16)], body)[0]
    wanted = x.clone()
    wanted[2:6, 4:12] = part
    assert torch.equal(output, wanted)


def test_elements_are_gathered_and_scattered_along_an_axis() -> None:
    x, index = torch.randn(8, 16), torch.randint(0, 8, (8, 16), dtype=torch.int32)
    across = torch.stack([torch.randperm(16) for _ in range(8)]).int()
    body = [
        PUT,
        f"%g = ttg.local_gather %r[%x1] {{axis = 0 : i32}} : {HERE}, {PLACES} -> {BLOCK}",
        f"ttg.local_scatter %r[%x2], %g {{axis = 1 : i32}} : {HERE}, {PLACES}, {BLOCK}",
        load("%r", "8x16xf32"),
    ]
    output = run([x, index, across], [torch.zeros(8, 16)], body)[0]
    assert torch.equal(output, x.scatter(1, across.long(), x.gather(0, index.long())))


BUFFERS = """
module {
  tt.func public @k(%x: !tt.ptr<f32>, %out: !tt.ptr<f32>, %n: i32) attributes {noinline = false} {
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %size = arith.constant 16 : i32
    %none = arith.constant dense<0.000000e+00> : tensor<16xf32>
    %pid = tt.get_program_id x : i32
    %at = arith.muli %pid, %size : i32
    %xp = tt.addptr %x, %at : !tt.ptr<f32>, i32
    %op = tt.addptr %out, %at : !tt.ptr<f32>, i32
    %i = tt.make_range {end = 16 : i32, start = 0 : i32} : tensor<16xi32>
    %xs = tt.splat %xp : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>
    %os = tt.splat %op : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>
    %xa = tt.addptr %xs, %i : tensor<16x!tt.ptr<f32>>, tensor<16xi32>
    %oa = tt.addptr %os, %i : tensor<16x!tt.ptr<f32>>, tensor<16xi32>
    %ns = tt.splat %n : i32 -> tensor<16xi32>
    %mask = arith.cmpi slt, %i, %ns : tensor<16xi32>
    %both = ttg.local_alloc : () -> {two}
    %b0 = ttg.memdesc_index %both[%zero] : {two} -> {line}
    %b1 = ttg.memdesc_index %both[%one] : {two} -> {line}
    %t0 = ttg.async_copy_global_to_local %xa, %b0 : tensor<16x!tt.ptr<f32>> -> <16xf32, #shared, #smem, mutable>
    %t1 = ttg.async_copy_global_to_local %xa, %b1 mask %mask other %none : tensor<16x!tt.ptr<f32>> -> <16xf32, #shared, #smem, mutable>
    %t2 = ttg.async_commit_group
    %t3 = ttg.async_wait {num = 0 : i32}
    %v0 = ttg.local_load %b0 : {line} -> tensor<16xf32>
    %v1 = ttg.local_load %b1 : {line} -> tensor<16xf32>
    %y = arith.addf %v0, %v1 : tensor<16xf32>
    tt.store %oa, %y : tensor<16x!tt.ptr<f32>>
    ttg.local_dealloc %both : {two}
    tt.return
  }
}
""".replace("{two}", room("2x16xf32")).replace("{line}", room("16xf32"))


def test_each_program_has_its_own_buffers_and_copies_come_before_they_are_waited_for() -> None:
    x, out = torch.randn(3, 16), torch.zeros(3, 16)
    evaluate(Kernel(BUFFERS), (x, out, 10), (3,))
    assert torch.equal(out, x + x * (torch.arange(16) < 10))


def picked(first: str, two: str) -> str:
    """The kernel above, whose first program adds buffer `two` and all others `first`."""
    room_of_line = room("16xf32")
    choice = f"""%later = arith.cmpi sgt, %pid, %zero : i32
    %b = scf.if %later -> ({room_of_line}) {{
      scf.yield {first} : {room_of_line}
    }} else {{
      scf.yield {two} : {room_of_line}
    }}
    %v1 = ttg.local_load %b"""
    return BUFFERS.replace("%v1 = ttg.local_load %b1", choice)


def test_programs_pick_buffers_of_one_allocation() -> None:
    x, out = torch.randn(3, 16), torch.zeros(3, 16)
    evaluate(Kernel(picked("%b0", "%b1")), (x, out, 10), (3,))
    wanted = 2 * x
    wanted[0] = x[0] + x[0] * (torch.arange(16) < 10)
    assert torch.equal(out, wanted)


def test_a_choice_between_allocations_is_not_evaluated() -> None:
    own = f"%own = ttg.local_alloc : () -> {room('16xf32')}\n    %later"
    text = picked("%own", "%b1").replace("%later", own, 1)
    with pytest.raises(Unsupported, match="two allocations"):
        evaluate(Kernel(text), (torch.randn(3, 16), torch.zeros(3, 16), 10), (3,))


def test_what_is_read_and_written_are_arguments_not_rooms() -> None:
    kernel = Kernel(BUFFERS)
    assert (kernel.touched.read, kernel.touched.written, kernel.touched.lost) == ({0}, {1}, False)


def test_unsupported_gluon_operations_are_named() -> None:
    body = [PUT, f"%t = ttng.tmem_alloc %x0 : ({BLOCK}) -> !ttg.memdesc<8x16xf32, #tmem, mutable>"]
    with pytest.raises(Unsupported, match=r"ttng\.tmem_alloc"):
        run([torch.zeros(8, 16)], [], body)


def test_a_copy_that_is_not_known_writes_to_what_it_is_given() -> None:
    store = "tt.store %oa, %y : tensor<16x!tt.ptr<f32>>"
    copy = f"amdg.async_tdm_copy_local_to_global %os[%at] %b0 : tensor<16x!tt.ptr<f32>>, {room('16xf32')}"
    kernel = Kernel(BUFFERS.replace(store, copy))
    assert "amdg.async_tdm_copy_local_to_global" in kernel.refusal
    assert kernel.touched.written == {1}
