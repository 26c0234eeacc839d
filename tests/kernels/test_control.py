"""Programs that part ways: loops of different lengths, branches, early ends, calls, and who is masked when."""

from __future__ import annotations

import pytest
import torch

from gapless.kernels.evaluate import Kernel, OverBudget, Unsupported, evaluate

LINE = """
module {{
  tt.func public @k(%a: !tt.ptr<i32>, %out: !tt.ptr<i32>, %n: i32) attributes {{noinline = false}} {{
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c3 = arith.constant 3 : i32
    %pid = tt.get_program_id x : i32
    %pa = tt.addptr %a, %pid : !tt.ptr<i32>, i32
    %po = tt.addptr %out, %pid : !tt.ptr<i32>, i32
    %x = tt.load %pa : !tt.ptr<i32>
{body}
  }}
}}
"""


def run(body: str, a: list[int], n: int = 0, budget: int = 10**9) -> list[int]:
    """Each program has one number of `a`, and writes one."""
    values = torch.tensor(a, dtype=torch.int32)
    out = torch.full_like(values, -7)
    evaluate(Kernel(LINE.format(body=body)), (values, out, n), (len(a),), budget=budget)
    return list(out.tolist())


def test_loops_as_long_as_each_program_says() -> None:
    body = """
    %s = scf.for %i = %c0 to %x step %c1 iter_args(%acc = %c0) -> (i32)  : i32 {
      %t = arith.addi %acc, %i : i32
      scf.yield %t : i32
    } {tt.num_stages = 3 : i32}
    tt.store %po, %s : !tt.ptr<i32>
    tt.return
    """
    assert run(body, [0, 1, 5, 10, -3]) == [0, 0, 10, 45, 0]


def test_what_a_loop_stores_only_its_programs_store() -> None:
    body = """
    scf.for %i = %c0 to %x step %c1  : i32 {
      tt.store %po, %i : !tt.ptr<i32>
    }
    tt.return
    """
    # without results there is no scf.yield in the text
    assert run(body, [0, 1, 4]) == [-7, 0, 3]


def test_branches() -> None:
    body = """
    %big = arith.cmpi sgt, %x, %c3 : i32
    %y = scf.if %big -> (i32) {
      %t = arith.muli %x, %c3 : i32
      tt.store %pa, %t : !tt.ptr<i32>
      scf.yield %t : i32
    } else {
      scf.yield %c1 : i32
    }
    tt.store %po, %y : !tt.ptr<i32>
    tt.return
    """
    assert run(body, [1, 5, 3, 7]) == [1, 15, 1, 21]
    assert run(body, [5, 6]) == [15, 18]
    assert run(body, [0, 1]) == [1, 1]


def test_a_branch_inside_of_a_loop() -> None:
    body = """
    %s = scf.for %i = %c0 to %n step %c1 iter_args(%acc = %c0) -> (i32)  : i32 {
      %r = arith.remsi %i, %c3 : i32
      %b = arith.cmpi eq, %r, %x : i32
      %t = scf.if %b -> (i32) {
        %u = arith.addi %acc, %i : i32
        scf.yield %u : i32
      } else {
        scf.yield %acc : i32
      }
      scf.yield %t : i32
    }
    tt.store %po, %s : !tt.ptr<i32>
    tt.return
    """
    expected = [sum(i for i in range(10) if i % 3 == r) for r in (0, 1, 2)]
    assert run(body, [0, 1, 2], n=10) == expected


def test_while() -> None:
    """How many steps Collatz' sequence takes."""
    body = """
    %c2 = arith.constant 2 : i32
    %r:2 = scf.while (%v = %x, %count = %c0) : (i32, i32) -> (i32, i32) {
      %more = arith.cmpi ne, %v, %c1 : i32
      scf.condition(%more) %v, %count : i32, i32
    } do {
    ^bb0(%v: i32, %count: i32):
      %half = arith.divsi %v, %c2 : i32
      %odd = arith.remsi %v, %c2 : i32
      %isodd = arith.cmpi eq, %odd, %c1 : i32
      %three = arith.muli %v, %c3 : i32
      %up = arith.addi %three, %c1 : i32
      %next = arith.select %isodd, %up, %half : i32
      %c = arith.addi %count, %c1 : i32
      scf.yield %next, %c : i32, i32
    }
    tt.store %po, %r#1 : !tt.ptr<i32>
    tt.return
    """

    def steps(n: int) -> int:
        return 0 if n == 1 else 1 + steps(3 * n + 1 if n % 2 else n // 2)

    assert run(body, [1, 2, 3, 7, 27]) == [steps(n) for n in (1, 2, 3, 7, 27)]


EARLY = """
    %stop = arith.cmpi sgt, %x, %c3 : i32
    cf.cond_br %stop, ^bb1, ^bb2
  ^bb1:  // pred: ^bb0
    tt.return
  ^bb2:  // pred: ^bb0
    %small = arith.cmpi eq, %x, %c1 : i32
    cf.cond_br %small, ^bb3(%c3 : i32), ^bb3(%x : i32)
  ^bb3(%z: i32):  // 2 preds: ^bb2, ^bb2
    tt.store %po, %z : !tt.ptr<i32>
    tt.return
"""


def test_programs_that_end_early() -> None:
    assert run(EARLY, [1, 9, 2, 4, 1]) == [3, -7, 2, -7, 3]
    assert run(EARLY, [9, 9]) == [-7, -7]


def test_calls() -> None:
    text = """
module {
  tt.func public @k(%a: !tt.ptr<i32>, %out: !tt.ptr<i32>) {
    %pid = tt.get_program_id x : i32
    %0 = tt.addptr %a, %pid : !tt.ptr<i32>, i32
    %1 = tt.load %0 : !tt.ptr<i32>
    %2:2 = tt.call @"both.i32__(1,)cconstexpr_2_"(%1, %pid) : (i32, i32) -> (i32, i32)
    %3 = arith.muli %2#0, %2#1 : i32
    tt.call @put(%out, %pid, %3) : (!tt.ptr<i32>, i32, i32) -> ()
    tt.return
  }
  tt.func private @"both.i32__(1,)cconstexpr_2_"(%0: i32, %1: i32) -> (i32, i32) attributes {noinline = true} {
    %2 = arith.addi %0, %1 : i32
    %3 = arith.subi %0, %1 : i32
    tt.return %2, %3 : i32, i32
  }
  tt.func private @put(%p: !tt.ptr<i32>, %0: i32, %1: i32) attributes {noinline = true} {
    %2 = tt.addptr %p, %0 : !tt.ptr<i32>, i32
    tt.store %2, %1 : !tt.ptr<i32>
    tt.return
  }
}
"""
    kernel = Kernel(text)
    a = torch.tensor([3, 4, 5], dtype=torch.int32)
    out = torch.empty_like(a)
    evaluate(kernel, (a, out), (3,))
    assert out.tolist() == [(x + i) * (x - i) for i, x in enumerate(a.tolist())]
    assert kernel.touched.written == {1}
    assert kernel.touched.read == {0}


def test_a_loop_without_an_end_is_left() -> None:
    body = """
    %r = scf.while (%v = %x) : (i32) -> i32 {
      %more = arith.cmpi ne, %v, %c0 : i32
      scf.condition(%more) %v : i32
    } do {
    ^bb0(%v: i32):
      scf.yield %v : i32
    }
    tt.return
    """
    with pytest.raises(OverBudget):
        run(body, [1, 1], budget=10**6)


def test_unsupported_code_is_refused_before_anything_is_written() -> None:
    body = """
    tt.store %po, %x : !tt.ptr<i32>
    %y = tt.something_new %x : i32
    tt.return
    """
    with pytest.raises(Unsupported, match=r"tt\.something_new"):
        run(body, [1])


@pytest.mark.parametrize("shape", [(7,), (2, 3), (2, 3, 4)])
def test_each_program_knows_where_it_is(shape: tuple[int, ...]) -> None:
    text = """
module {
  tt.func public @k(%out: !tt.ptr<i32>) {
    %x = tt.get_program_id x : i32
    %y = tt.get_program_id y : i32
    %z = tt.get_program_id z : i32
    %nx = tt.get_num_programs x : i32
    %ny = tt.get_num_programs y : i32
    %0 = arith.muli %z, %ny : i32
    %1 = arith.addi %0, %y : i32
    %2 = arith.muli %1, %nx : i32
    %3 = arith.addi %2, %x : i32
    %p = tt.addptr %out, %3 : !tt.ptr<i32>, i32
    tt.store %p, %3 : !tt.ptr<i32>
    tt.return
  }
}
"""
    count = torch.Size(shape).numel()
    out = torch.full((count,), -1, dtype=torch.int32)
    evaluate(Kernel(text), (out,), shape)
    assert out.tolist() == list(range(count))
