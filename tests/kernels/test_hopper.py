"""Copies through descriptors, products of shared memory and barriers, as Gluon's kernels for Hopper use them."""

from __future__ import annotations

import torch

from gapless.kernels.evaluate import Kernel, evaluate

PRODUCT = """
module {
  tt.func public @k(%a: !tt.tensordesc<16x16xf16, #shared>, %ah: i32, %aw: i32, %as: i64, %au: i64, %b: !tt.tensordesc<16x32xf16, #shared>, %bh: i32, %bw: i32, %bs: i64, %bu: i64, %c: !tt.tensordesc<16x32xf32, #shared>, %ch: i32, %cw: i32, %cs: i64, %cu: i64, %k: i32) {
    %zero = arith.constant 0 : i32
    %step = arith.constant 16 : i32
    %wide = arith.constant 32 : i32
    %true = arith.constant true
    %none = arith.constant dense<7.000000e+00> : tensor<16x32xf32>
    %x = tt.get_program_id x : i32
    %y = tt.get_program_id y : i32
    %m = arith.muli %x, %step : i32
    %n = arith.muli %y, %wide : i32
    %l = ttg.local_alloc : () -> !ttg.memdesc<16x16xf16, #shared, #smem, mutable>
    %r = ttg.local_alloc : () -> !ttg.memdesc<16x32xf16, #shared, #smem, mutable>
    %bar = ttg.local_alloc : () -> !ttg.memdesc<1xi64, #shared, #smem, mutable>
    ttng.init_barrier %bar, 1 : !ttg.memdesc<1xi64, #shared, #smem, mutable>
    %sum = scf.for %i = %zero to %k step %step iter_args(%acc = %none) -> (tensor<16x32xf32>) : i32 {
      ttng.barrier_expect %bar, 1536, %true : !ttg.memdesc<1xi64, #shared, #smem, mutable>
      ttng.async_tma_copy_global_to_local %a[%m, %i] %l, %bar, %true : !tt.tensordesc<16x16xf16, #shared>, !ttg.memdesc<1xi64, #shared, #smem, mutable> -> !ttg.memdesc<16x16xf16, #shared, #smem, mutable>
      ttng.async_tma_copy_global_to_local %b[%i, %n] %r, %bar, %true : !tt.tensordesc<16x32xf16, #shared>, !ttg.memdesc<1xi64, #shared, #smem, mutable> -> !ttg.memdesc<16x32xf16, #shared, #smem, mutable>
      ttng.wait_barrier %bar, %zero, %true : !ttg.memdesc<1xi64, #shared, #smem, mutable>
      %more = arith.cmpi sgt, %i, %zero : i32
      %d = ttng.warp_group_dot %l, %r, %acc, %more {inputPrecision = 0 : i32, isAsync = true} : !ttg.memdesc<16x16xf16, #shared, #smem, mutable> * !ttg.memdesc<16x32xf16, #shared, #smem, mutable> -> tensor<16x32xf32, #mma>
      %e = ttng.warp_group_dot_wait %d {pendings = 0 : i32} : tensor<16x32xf32, #mma>
      scf.yield %e : tensor<16x32xf32>
    }
    ttng.inval_barrier %bar : !ttg.memdesc<1xi64, #shared, #smem, mutable>
    %o = ttg.local_alloc %sum : (tensor<16x32xf32>) -> !ttg.memdesc<16x32xf32, #shared, #smem, mutable>
    ttng.fence_async_shared {bCluster = false}
    ttng.async_tma_copy_local_to_global %c[%m, %n] %o : !tt.tensordesc<16x32xf32, #shared>, !ttg.memdesc<16x32xf32, #shared, #smem, mutable>
    ttng.async_tma_store_wait {pendings = 0 : i32}
    tt.return
  }
}
"""


def test_a_product_of_what_is_copied_through_descriptors() -> None:
    a, b = torch.randn(40, 50).half(), torch.randn(50, 70).half()
    out = torch.zeros(40, 70)
    described = [
        value
        for tensor in (a, b, out)
        for value in ((tensor, tensor.shape, tensor.stride(), 0.0), *tensor.shape, *tensor.stride())
    ]
    cost = evaluate(Kernel(PRODUCT), (*described, 50), (3, 3))
    torch.testing.assert_close(out, a.float() @ b.float(), rtol=1e-4, atol=1e-4)
    assert cost.flops == 2 * 48 * 96 * 64
    assert cost.products == "f16"


def test_descriptors_are_read_and_written_and_barriers_are_neither() -> None:
    touched = Kernel(PRODUCT).touched
    assert (touched.read, touched.written, touched.lost) == ({0, 5}, {10}, False)
