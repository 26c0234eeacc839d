"""Loads, stores, atomics, addresses as numbers and descriptors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.ttir import run

from gapless.kernels.evaluate import Kernel, Unsupported, evaluate

STRIDED = """
module {
  tt.func public @k(%a: !tt.ptr<f32>, %out: !tt.ptr<f32>, %sp: i32, %s0: i32, %s1: i32, %rows: i32, %cols: i32) {
    %other = arith.constant dense<-5.000000e+00> : tensor<8x16xf32>
    %c128 = arith.constant 128 : i32
    %w = arith.constant dense<16> : tensor<8x1xi32>
    %pid = tt.get_program_id x : i32
    %r = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32>
    %c = tt.make_range {end = 16 : i32, start = 0 : i32} : tensor<16xi32>
    %re = tt.expand_dims %r {axis = 1 : i32} : tensor<8xi32> -> tensor<8x1xi32>
    %ce = tt.expand_dims %c {axis = 0 : i32} : tensor<16xi32> -> tensor<1x16xi32>
    %s0s = tt.splat %s0 : i32 -> tensor<8x1xi32>
    %s1s = tt.splat %s1 : i32 -> tensor<1x16xi32>
    %ro = arith.muli %re, %s0s : tensor<8x1xi32>
    %co = arith.muli %ce, %s1s : tensor<1x16xi32>
    %rb = tt.broadcast %ro : tensor<8x1xi32> -> tensor<8x16xi32>
    %cb = tt.broadcast %co : tensor<1x16xi32> -> tensor<8x16xi32>
    %o = arith.addi %rb, %cb : tensor<8x16xi32>
    %po = arith.muli %pid, %sp : i32
    %base = tt.addptr %a, %po : !tt.ptr<f32>, i32
    %bs = tt.splat %base : !tt.ptr<f32> -> tensor<8x16x!tt.ptr<f32>>
    %p = tt.addptr %bs, %o : tensor<8x16x!tt.ptr<f32>>, tensor<8x16xi32>
    %rl = tt.splat %rows : i32 -> tensor<8x1xi32>
    %cl = tt.splat %cols : i32 -> tensor<1x16xi32>
    %rm = arith.cmpi slt, %re, %rl : tensor<8x1xi32>
    %cm = arith.cmpi slt, %ce, %cl : tensor<1x16xi32>
    %rmb = tt.broadcast %rm : tensor<8x1xi1> -> tensor<8x16xi1>
    %cmb = tt.broadcast %cm : tensor<1x16xi1> -> tensor<8x16xi1>
    %m = arith.andi %rmb, %cmb : tensor<8x16xi1>
    %x = tt.load %p, %m, %other : tensor<8x16x!tt.ptr<f32>>
    %oo = arith.muli %re, %w : tensor<8x1xi32>
    %oob = tt.broadcast %oo : tensor<8x1xi32> -> tensor<8x16xi32>
    %ceb = tt.broadcast %ce : tensor<1x16xi32> -> tensor<8x16xi32>
    %t = arith.addi %oob, %ceb : tensor<8x16xi32>
    %pp = arith.muli %pid, %c128 : i32
    %ob = tt.addptr %out, %pp : !tt.ptr<f32>, i32
    %os = tt.splat %ob : !tt.ptr<f32> -> tensor<8x16x!tt.ptr<f32>>
    %q = tt.addptr %os, %t : tensor<8x16x!tt.ptr<f32>>, tensor<8x16xi32>
    tt.store %q, %x : tensor<8x16x!tt.ptr<f32>>
    tt.return
  }
}
"""
STRIDED_KERNEL = Kernel(STRIDED)


@settings(deadline=None, max_examples=60)
@given(
    step=st.integers(0, 40),
    strides=st.tuples(st.integers(0, 20), st.integers(0, 20)),
    rows=st.integers(0, 9),
    columns=st.integers(0, 17),
    programs=st.integers(1, 5),
    size=st.integers(1, 700),
)
def test_blocks_of_any_strides(
    step: int, strides: tuple[int, int], rows: int, columns: int, programs: int, size: int
) -> None:
    """Also those that overlap, that end outside of the storage, and that are cut off."""
    a = torch.arange(size, dtype=torch.float32)
    out = torch.full((programs, 8, 16), -9.0)
    evaluate(STRIDED_KERNEL, (a, out, step, *strides, rows, columns), (programs,))
    for program in range(programs):
        for row in range(8):
            for column in range(16):
                at = program * step + row * strides[0] + column * strides[1]
                got = float(out[program, row, column])
                if row >= rows or column >= columns:
                    assert got == -5.0
                elif at < size:
                    assert got == at


def test_stores_outside_are_dropped_and_masked_ones_not_done() -> None:
    a = torch.arange(16, dtype=torch.float32)
    mask = torch.tensor([True] * 4 + [False] * 4 + [True] * 8)
    out = torch.full((12,), -1.0)
    text = (
        "module { \n tt.func public @k(%a: !tt.ptr<f32>, %m: !tt.ptr<i8>, %o: !tt.ptr<f32>) {\n"
        "%r = tt.make_range {end = 16 : i32, start = 0 : i32} : tensor<16xi32>\n"
        "%as = tt.splat %a : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>\n"
        "%ms = tt.splat %m : !tt.ptr<i8> -> tensor<16x!tt.ptr<i8>>\n"
        "%os = tt.splat %o : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>\n"
        "%ap = tt.addptr %as, %r : tensor<16x!tt.ptr<f32>>, tensor<16xi32>\n"
        "%mp = tt.addptr %ms, %r : tensor<16x!tt.ptr<i8>>, tensor<16xi32>\n"
        "%op = tt.addptr %os, %r : tensor<16x!tt.ptr<f32>>, tensor<16xi32>\n"
        "%x = tt.load %ap : tensor<16x!tt.ptr<f32>>\n"
        "%b = tt.load %mp : tensor<16x!tt.ptr<i8>>\n"
        "%t = arith.trunci %b : tensor<16xi8> to tensor<16xi1>\n"
        "tt.store %op, %x, %t : tensor<16x!tt.ptr<f32>>\n"
        "tt.return\n }\n}\n"
    )
    cost = evaluate(Kernel(text), (a, mask, out), (1,))
    assert out.tolist() == [0, 1, 2, 3, -1, -1, -1, -1, 8, 9, 10, 11]
    assert cost.read == {a.data_ptr(): 64, mask.data_ptr(): 16}
    assert cost.written == {out.data_ptr(): 48}


# -- atomics -------------------------------------------------------------------------------------------


def atomics(
    kind: str, of: str, places: torch.Tensor, values: torch.Tensor, target: torch.Tensor
) -> torch.Tensor:
    """Change `target` at `places`, block by block of 8; what was there before each."""
    before = torch.empty_like(values)
    text = f"""
module {{
  tt.func public @k(%i: !tt.ptr<i32>, %v: !tt.ptr<{of}>, %t: !tt.ptr<{of}>, %o: !tt.ptr<{of}>) {{
    %c8 = arith.constant 8 : i32
    %mask = arith.constant dense<true> : tensor<8xi1>
    %pid = tt.get_program_id x : i32
    %start = arith.muli %pid, %c8 : i32
    %r = tt.make_range {{end = 8 : i32, start = 0 : i32}} : tensor<8xi32>
    %ss = tt.splat %start : i32 -> tensor<8xi32>
    %n = arith.addi %ss, %r : tensor<8xi32>
    %is = tt.splat %i : !tt.ptr<i32> -> tensor<8x!tt.ptr<i32>>
    %ip = tt.addptr %is, %n : tensor<8x!tt.ptr<i32>>, tensor<8xi32>
    %at = tt.load %ip : tensor<8x!tt.ptr<i32>>
    %vs = tt.splat %v : !tt.ptr<{of}> -> tensor<8x!tt.ptr<{of}>>
    %vp = tt.addptr %vs, %n : tensor<8x!tt.ptr<{of}>>, tensor<8xi32>
    %x = tt.load %vp : tensor<8x!tt.ptr<{of}>>
    %ts = tt.splat %t : !tt.ptr<{of}> -> tensor<8x!tt.ptr<{of}>>
    %tp = tt.addptr %ts, %at : tensor<8x!tt.ptr<{of}>>, tensor<8xi32>
    %old = tt.atomic_rmw {kind}, acq_rel, gpu, %tp, %x, %mask : (tensor<8x!tt.ptr<{of}>>, tensor<8x{of}>, tensor<8xi1>) -> tensor<8x{of}>
    %os = tt.splat %o : !tt.ptr<{of}> -> tensor<8x!tt.ptr<{of}>>
    %op = tt.addptr %os, %n : tensor<8x!tt.ptr<{of}>>, tensor<8xi32>
    tt.store %op, %old : tensor<8x!tt.ptr<{of}>>
    tt.return
  }}
}}
"""
    evaluate(Kernel(text), (places, values, target, before), (len(places) // 8,))
    return before


COMBINED = {
    "add": lambda a, b: a + b,
    "max": max,
    "min": min,
    "umax": lambda a, b: max(a % 2**32, b % 2**32),
    "umin": lambda a, b: min(a % 2**32, b % 2**32),
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "exch": lambda a, b: b,
}


@pytest.mark.parametrize("kind", COMBINED)
def test_atomics_take_turns(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(0, 5, (32,), dtype=torch.int32, generator=generator)
    values = torch.randint(-100, 100, (32,), dtype=torch.int32, generator=generator)
    target = torch.arange(5, dtype=torch.int32)
    expected, old_values = target.tolist(), []
    for place, value in zip(places.tolist(), values.tolist(), strict=True):
        old_values.append(expected[place])
        new = COMBINED[kind](expected[place], value)
        expected[place] = (new + 2**31) % 2**32 - 2**31
    before = atomics(kind, "i32", places, values, target)
    assert target.tolist() == expected
    assert before.tolist() == old_values


def test_sums_in_half_precision_do_not_depend_on_the_order() -> None:
    places = torch.zeros(64, dtype=torch.int32)
    values = torch.full((64,), 0.01, dtype=torch.bfloat16)
    target = torch.tensor([4.0], dtype=torch.bfloat16)
    text_values = values.clone()
    atomics("fadd", "f32", places, text_values.float(), (wide := target.float()))
    torch.testing.assert_close(wide, torch.tensor([4.64]), rtol=1e-3, atol=0.0)


def test_a_lock_is_taken_by_one_after_the_other() -> None:
    """Each program spins until the lock is free, adds to a sum without atomics, and frees it."""
    text = """
module {
  tt.func public @k(%lock: !tt.ptr<i32>, %sum: !tt.ptr<f32>) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %one = arith.constant 1.000000e+00 : f32
    %t = arith.constant true
    scf.while : () -> () {
      %old = tt.atomic_cas acq_rel, gpu, %lock, %c0, %c1 : (!tt.ptr<i32>, i32, i32) -> i32
      %held = arith.cmpi eq, %old, %c1 : i32
      scf.condition(%held)
    } do {
      scf.yield
    }
    %s = tt.load %sum : !tt.ptr<f32>
    %n = arith.addf %s, %one : f32
    tt.store %sum, %n : !tt.ptr<f32>
    %f = tt.atomic_rmw exch, acq_rel, gpu, %lock, %c0, %t : (!tt.ptr<i32>, i32, i1) -> i32
    tt.return
  }
}
"""
    lock, total = torch.zeros(1, dtype=torch.int32), torch.zeros(1)
    evaluate(Kernel(text), (lock, total), (17,))
    assert total.item() == 17
    assert lock.item() == 0


# -- addresses as numbers ------------------------------------------------------------------------------

TABLE = """
module {
  tt.func public @k(%table: !tt.ptr<i64>, %out: !tt.ptr<f32>) {
    %pid = tt.get_program_id x : i32
    %c4 = arith.constant 4 : i32
    %r = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32>
    %p = tt.addptr %table, %pid : !tt.ptr<i64>, i32
    %n = tt.load %p : !tt.ptr<i64>
    %a = tt.int_to_ptr %n : i64 -> !tt.ptr<f32>
    %as = tt.splat %a : !tt.ptr<f32> -> tensor<4x!tt.ptr<f32>>
    %ap = tt.addptr %as, %r : tensor<4x!tt.ptr<f32>>, tensor<4xi32>
    %x = tt.load %ap : tensor<4x!tt.ptr<f32>>
    %y = arith.addf %x, %x : tensor<4xf32>
    tt.store %ap, %y : tensor<4x!tt.ptr<f32>>
    %s = arith.muli %pid, %c4 : i32
    %o = tt.addptr %out, %s : !tt.ptr<f32>, i32
    %os = tt.splat %o : !tt.ptr<f32> -> tensor<4x!tt.ptr<f32>>
    %op = tt.addptr %os, %r : tensor<4x!tt.ptr<f32>>, tensor<4xi32>
    tt.store %op, %x : tensor<4x!tt.ptr<f32>>
    tt.return
  }
}
"""


def test_tensors_in_a_table_of_addresses() -> None:
    tensors = [torch.full((6,), float(n))[1:] for n in range(3)]
    table = torch.tensor([tensor.data_ptr() for tensor in tensors])
    out = torch.empty(3, 4)
    evaluate(Kernel(TABLE), (table, out), (3,), find=lambda: [tensor.untyped_storage() for tensor in tensors])
    assert out.tolist() == [[float(n)] * 4 for n in range(3)]
    assert [tensor.tolist() for tensor in tensors] == [[2.0 * n] * 4 + [float(n)] for n in range(3)]


def test_an_address_of_nothing_is_said() -> None:
    with pytest.raises(Unsupported, match="belongs to no tensor"):
        evaluate(Kernel(TABLE), (torch.tensor([12345]), torch.empty(4)), (1,))


# -- descriptors ---------------------------------------------------------------------------------------


def test_descriptors_read_and_write_blocks_at_the_edge() -> None:
    text = """
module {
  tt.func public @k(%d: !tt.tensordesc<tensor<4x8xf32>>, %h: i32, %w: i32, %s: i64, %u: i64, %o: !tt.ptr<f32>, %rows: i32, %cols: i32, %stride: i64) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i64
    %c4 = arith.constant 4 : i32
    %c8 = arith.constant 8 : i32
    %x = tt.get_program_id x : i32
    %y = tt.get_program_id y : i32
    %i = arith.muli %x, %c4 : i32
    %j = arith.muli %y, %c8 : i32
    %b = tt.descriptor_load %d[%i, %j] : !tt.tensordesc<tensor<4x8xf32>> -> tensor<4x8xf32>
    %e = tt.make_tensor_descriptor %o, [%rows, %cols], [%stride, %c1] : !tt.ptr<f32>, !tt.tensordesc<tensor<4x8xf32>>
    tt.descriptor_store %e[%i, %j], %b : !tt.tensordesc<tensor<4x8xf32>>, tensor<4x8xf32>
    tt.descriptor_reduce add, %e[%i, %j], %b : !tt.tensordesc<tensor<4x8xf32>>, tensor<4x8xf32>
    tt.return
  }
}
"""
    a = torch.randn(7, 12)
    out = torch.full((7, 12), -1.0)
    kernel = Kernel(text)
    described = (a, a.shape, a.stride(), 0.0)
    evaluate(kernel, (described, *a.shape, *a.stride(), out, 7, 12, 12), (2, 2))
    torch.testing.assert_close(out, 2 * a)
    assert (kernel.touched.read, kernel.touched.written) == ({0, 5}, {5})


def test_pointers_cast_to_other_types() -> None:
    a, out = torch.randn(8), torch.empty(8, dtype=torch.int32)
    run([a.view(torch.int32)], [out], [
        "%f = tt.bitcast %x0 : tensor<8xi32> -> tensor<8xf32>",
        "%g = arith.negf %f : tensor<8xf32>",
        "%y0 = tt.bitcast %g : tensor<8xf32> -> tensor<8xi32>",
    ])  # fmt: skip
    assert torch.equal(out.view(torch.float32), -a)
