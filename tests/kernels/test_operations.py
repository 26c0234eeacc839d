"""Each operation of TTIR alone, against NumPy, whose integers may be unsigned."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from kernels.ttir import block, element, run

INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
SIZE = 64


def numbers(dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Numbers of all sizes, those at the ends of the type among them."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(SIZE, generator=generator).mul(3).to(dtype)
    info = torch.iinfo(dtype)
    result = torch.randint(-(2**31), 2**31 - 1, (SIZE,), generator=generator).long()
    result = result * 3_000_000_019 >> torch.randint(0, 60, (SIZE,), generator=generator)
    result = result.to(dtype)
    result[:6] = torch.tensor([info.min, info.max, -1, 0, 1, 2]).to(dtype)
    return result[torch.randperm(SIZE, generator=generator)]


def bits(tensor: torch.Tensor, signed: bool) -> Any:
    array = tensor.numpy()
    return array if signed else array.view(UNSIGNED[tensor.element_size()])


def binary(
    name: str, a: torch.Tensor, b: torch.Tensor, result_dtype: torch.dtype | None = None, text: str = ""
) -> Any:
    out = torch.empty(a.shape, dtype=result_dtype or a.dtype)
    run([a, b], [out], [f"%y0 = {name} {text}%x0, %x1 : {block(a.shape, element(a))}"])
    return out


SIGNED_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
}
UNSIGNED_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "arith.divui": np.floor_divide,
    "arith.remui": np.remainder,
    "arith.maxui": np.maximum,
    "arith.minui": np.minimum,
}


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", SIGNED_BINARY)
def test_signed_integers(name: str, dtype: torch.dtype) -> None:
    a, b = numbers(dtype), numbers(dtype, 1)
    with np.errstate(over="ignore"):
        expected = SIGNED_BINARY[name](bits(a, True), bits(b, True))
    np.testing.assert_array_equal(binary(name, a, b).numpy(), expected)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", UNSIGNED_BINARY)
def test_unsigned_integers(name: str, dtype: torch.dtype) -> None:
    a, b = numbers(dtype), numbers(dtype, 1)
    b[b == 0] = 3
    expected = UNSIGNED_BINARY[name](bits(a, False), bits(b, False))
    np.testing.assert_array_equal(bits(binary(name, a, b), False), expected)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_division_goes_towards_zero(dtype: torch.dtype) -> None:
    a, b = numbers(dtype), numbers(dtype, 1)
    b[b == 0] = 7
    low = torch.iinfo(dtype).min
    quotients, rests = binary("arith.divsi", a, b).tolist(), binary("arith.remsi", a, b).tolist()
    for dividend, by, quotient, rest in zip(a.tolist(), b.tolist(), quotients, rests, strict=True):
        if dividend == low and by == -1:
            continue  # no such number
        exact = abs(dividend) // abs(by) * (1 if (dividend < 0) == (by < 0) else -1)
        assert (quotient, rest) == (exact, dividend - exact * by)


@pytest.mark.parametrize("name", ["arith.divsi", "arith.remsi", "arith.divui", "arith.remui"])
def test_dividing_by_zero_ends_nothing(name: str) -> None:
    """Lanes that are masked elsewhere divide by whatever there is; those beside them are not touched by it."""
    a = torch.tensor([1, -(2**31), 17, 5, 0, -17, 2**31 - 1, 17], dtype=torch.int32)
    b = torch.tensor([0, -1, 5, 0, 0, 5, 2, -5], dtype=torch.int32)
    got = binary(name, a, b)
    assert (got.dtype, got.shape) == (a.dtype, a.shape)
    signed = name.endswith("si")
    low = torch.iinfo(a.dtype).min
    for dividend, by, high_half in zip(*(bits(part, signed).tolist() for part in (a, b, got)), strict=True):
        if by == 0 or (signed and (dividend, by) == (low, -1)):
            continue  # no such number
        quotient = abs(dividend) // abs(by) * (1 if (dividend < 0) == (by < 0) else -1)
        assert high_half == (quotient if "div" in name else dividend - quotient * by)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", ["arith.shli", "arith.shrsi", "arith.shrui"])
def test_shifts(name: str, dtype: torch.dtype) -> None:
    a = numbers(dtype)
    by = torch.arange(SIZE).remainder(dtype.itemsize * 8).to(dtype)
    array = bits(a, name != "arith.shrui")
    shift = by.numpy().astype(array.dtype)
    expected = np.left_shift(array, shift) if name == "arith.shli" else np.right_shift(array, shift)
    np.testing.assert_array_equal(bits(binary(name, a, by), name != "arith.shrui"), expected)


COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal,
}  # fmt: skip


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("predicate", ["eq", "ne", *(s + c for s in "su" for c in ("lt", "le", "gt", "ge"))])
def test_comparing_integers(predicate: str, dtype: torch.dtype) -> None:
    a, b = numbers(dtype), numbers(dtype, 1)
    b[::3] = a[::3]
    signed = not predicate.startswith("u")
    expected = COMPARED[predicate[-2:]](bits(a, signed), bits(b, signed))
    got = binary("arith.cmpi", a, b, torch.bool, f"{predicate}, ")
    np.testing.assert_array_equal(got.numpy(), expected)


@pytest.mark.parametrize("order", ["o", "u"])
@pytest.mark.parametrize("predicate", list(COMPARED))
def test_floats_and_none_are_compared(predicate: str, order: str) -> None:
    a, b = numbers(torch.float32), numbers(torch.float32, 1)
    b[::3] = a[::3]
    a[::5], b[::7] = math.nan, math.nan
    unordered = np.isnan(a.numpy()) | np.isnan(b.numpy())
    expected = COMPARED[predicate](a.numpy(), b.numpy())
    expected = expected | unordered if order == "u" else expected & ~unordered
    got = binary("arith.cmpf", a, b, torch.bool, f"{order}{predicate}, ")
    np.testing.assert_array_equal(got.numpy(), expected)


FLOATS: dict[str, Callable[[Any, Any], Any]] = {
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "tt.precise_divf": np.divide,
    "arith.remf": np.fmod,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "math.copysign": np.copysign,
    "math.atan2": np.arctan2,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FLOATS)
def test_floats(name: str, dtype: torch.dtype) -> None:
    a, b = numbers(dtype), numbers(dtype, 1)
    a[::5], b[::7] = math.nan, math.nan
    expected = FLOATS[name](a.numpy(), b.numpy())
    np.testing.assert_allclose(binary(name, a, b).numpy(), expected, rtol=1e-6)


UNARY: dict[str, Callable[[Any], Any]] = {
    "arith.negf": np.negative, "math.absf": np.abs, "math.exp": np.exp, "math.exp2": np.exp2,
    "math.expm1": np.expm1, "math.sin": np.sin, "math.cos": np.cos, "math.tan": np.tan, "math.tanh": np.tanh,
    "math.sinh": np.sinh, "math.cosh": np.cosh, "math.atan": np.arctan, "math.asinh": np.arcsinh,
    "math.floor": np.floor, "math.ceil": np.ceil, "math.trunc": np.trunc, "math.roundeven": np.round,
    "math.cbrt": np.cbrt, "math.isnan": np.isnan, "math.erf": np.vectorize(math.erf),
}  # fmt: skip
POSITIVE: dict[str, Callable[[Any], Any]] = {
    "math.log": np.log, "math.log2": np.log2, "math.log10": np.log10, "math.log1p": np.log1p,
    "math.sqrt": np.sqrt, "tt.precise_sqrt": np.sqrt, "math.rsqrt": lambda x: 1 / np.sqrt(x),
}  # fmt: skip


@pytest.mark.parametrize("name", [*UNARY, *POSITIVE])
def test_functions(name: str) -> None:
    a = numbers(torch.float32)
    a = a.abs() if name in POSITIVE else a
    expected = {**UNARY, **POSITIVE}[name](a.double().numpy())
    output = torch.empty(SIZE, dtype=torch.bool if expected.dtype == bool else torch.float32)
    run([a], [output], [f"%y0 = {name} %x0 : {block([SIZE], 'f32')}"])
    np.testing.assert_allclose(output.numpy(), expected, rtol=2e-6, atol=1e-6)


def cast(name: str, a: torch.Tensor, to: torch.dtype, text: str = "") -> torch.Tensor:
    out = torch.empty(a.shape, dtype=to)
    arrow = "->" if name.startswith("tt.") else "to"
    types = f"{block(a.shape, element(a))} {arrow} {block(a.shape, element(out))}"
    run([a], [out], [f"%y0 = {name} %x0{text} : {types}"])
    return out


@pytest.mark.parametrize("of", INTEGERS)
@pytest.mark.parametrize("to", INTEGERS)
def test_integers_become_others(of: torch.dtype, to: torch.dtype) -> None:
    a = numbers(of)
    if to.itemsize > of.itemsize:
        np.testing.assert_array_equal(
            cast("arith.extsi", a, to).numpy(), a.numpy().astype(bits(a.to(to), True).dtype)
        )
        np.testing.assert_array_equal(
            bits(cast("arith.extui", a, to), False), bits(a, False).astype(UNSIGNED[to.itemsize])
        )
    elif to.itemsize < of.itemsize:
        np.testing.assert_array_equal(
            bits(cast("arith.trunci", a, to), False), bits(a, False).astype(UNSIGNED[to.itemsize])
        )


@pytest.mark.parametrize("of", INTEGERS)
def test_integers_become_floats(of: torch.dtype) -> None:
    a = numbers(of)
    np.testing.assert_allclose(cast("arith.sitofp", a, torch.float64).numpy(), a.numpy().astype(np.float64))
    np.testing.assert_allclose(
        cast("arith.uitofp", a, torch.float64).numpy(), bits(a, False).astype(np.float64)
    )


@pytest.mark.parametrize("to", [torch.int32, torch.int64])
def test_floats_become_integers_as_on_a_gpu(to: torch.dtype) -> None:
    """PTX: ``cvt.rzi`` gives the nearest number there is, and 0 for what is none."""
    info = torch.iinfo(to)
    a = torch.tensor([1.9, -1.9, 0.0, math.inf, -math.inf, math.nan, 1e30, -1e30], dtype=torch.float64)
    expected = [1, -1, 0, info.max, info.min, 0, info.max, info.min]
    assert cast("arith.fptosi", a, to).tolist() == expected


def test_a_bit_is_minus_one_where_it_has_a_sign() -> None:
    a = torch.tensor([True, False, True, True])
    assert cast("arith.extsi", a, torch.int32).tolist() == [-1, 0, -1, -1]
    assert cast("arith.extui", a, torch.int32).tolist() == [1, 0, 1, 1]
    assert cast("arith.uitofp", a, torch.float32).tolist() == [1.0, 0.0, 1.0, 1.0]
    odd = torch.tensor([2, 3, -1, -2], dtype=torch.int32)
    assert cast("arith.trunci", odd, torch.bool).tolist() == [False, True, True, False]


@pytest.mark.parametrize("to", [torch.float16, torch.bfloat16])
def test_rounding_towards_zero(to: torch.dtype) -> None:
    a = numbers(torch.float32)
    near, down = cast("arith.truncf", a, to), cast("tt.fp_to_fp", a, to, ", rounding = rtz")
    assert torch.equal(near, a.to(to))
    assert bool((down.float().abs() <= a.abs()).all())
    assert bool(((down.float() - a).abs() < 2 ** (-7 if to is torch.bfloat16 else -10) * a.abs()).all())


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_upper_half_of_products(dtype: torch.dtype) -> None:
    a, b = numbers(dtype), numbers(dtype, 1)
    size = dtype.itemsize * 8
    got = bits(binary("tt.mulhiui", a, b), False)
    expected = [int(x) * int(y) >> size for x, y in zip(bits(a, False), bits(b, False), strict=True)]
    assert [int(x) for x in got] == expected
    low, high = torch.empty_like(a), torch.empty_like(a)
    run([a, b], [low, high], [f"%r:2 = arith.mulsi_extended %x0, %x1 : {block([SIZE], element(a))}",
                              *_copies("%r#0", "%y0", a), *_copies("%r#1", "%y1", a)])  # fmt: skip
    exact = [x * y for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert high.tolist() == [product >> size for product in exact]
    assert [x % 2**size for x in low.tolist()] == [product % 2**size for product in exact]


def _copies(source: str, target: str, like: torch.Tensor) -> list[str]:
    """A value under another name."""
    kind = block(like.shape, element(like))
    return [
        f"{target}z = arith.constant dense<0> : {kind}",
        f"{target} = arith.ori {source}, {target}z : {kind}",
    ]


def test_counts_of_bits() -> None:
    a = numbers(torch.int32)
    for name, count in (
        ("math.ctpop", lambda x: bin(x).count("1")),
        ("math.ctlz", lambda x: 32 - x.bit_length()),
        ("math.cttz", lambda x: (x & -x).bit_length() - 1 if x else 32),
    ):
        out = torch.empty_like(a)
        run([a], [out], [f"%y0 = {name} %x0 : {block([SIZE], 'i32')}"])
        assert out.tolist() == [count(x % 2**32) for x in a.tolist()], name


# -- shapes --------------------------------------------------------------------------------------------


def test_shapes() -> None:
    a = torch.arange(32, dtype=torch.float32).view(4, 8)
    turned, joined = torch.empty(8, 4), torch.empty(4, 8, 2)
    run([a], [turned], ["%y0 = tt.trans %x0 {order = array<i32: 1, 0>} : tensor<4x8xf32> -> tensor<8x4xf32>"])
    assert torch.equal(turned, a.T)
    run([a, a + 1], [joined], ["%y0 = tt.join %x0, %x1 : tensor<4x8xf32> -> tensor<4x8x2xf32>"])
    assert torch.equal(joined, torch.stack((a, a + 1), -1))
    evens, two = torch.empty(4, 8), torch.empty(4, 8)
    run([joined], [evens, two], ["%y0, %y1 = tt.split %x0 : tensor<4x8x2xf32> -> tensor<4x8xf32>"])
    assert torch.equal(evens, a)
    assert torch.equal(two, a + 1)
    flat = torch.empty(32)
    run([a], [flat], ["%y0 = tt.reshape %x0 allow_reorder : tensor<4x8xf32> -> tensor<32xf32>"])
    assert torch.equal(flat, a.view(-1))
    both = torch.empty(8, 8)
    run([a, a + 1], [both], ["%y0 = tt.cat %x0, %x1 : tensor<4x8xf32> -> tensor<8x8xf32>"])
    assert torch.equal(both, torch.cat((a, a + 1)))


def test_gather_picks_along_an_axis() -> None:
    a = numbers(torch.float32).view(8, 8)
    index = torch.randint(0, 8, (8, 8), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
    for axis in (0, 1):
        out = torch.empty(8, 8)
        kinds = "(tensor<8x8xf32>, tensor<8x8xi32>) -> tensor<8x8xf32>"
        run([a, index], [out], [f"%y0 = tt.gather %x0[%x1] {{axis = {axis} : i32}} : {kinds}"])
        assert torch.equal(out, torch.gather(a, axis, index.long()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_products(dtype: torch.dtype) -> None:
    a, b = torch.randn(16, 32).to(dtype), torch.randn(32, 8).to(dtype)
    c, out = torch.randn(16, 8), torch.empty(16, 8)
    of = element(a)
    run([a, b, c], [out], [
        f"%y0 = tt.dot %x0, %x1, %x2, inputPrecision = tf32 : tensor<16x32x{of}> * tensor<32x8x{of}> -> tensor<16x8xf32>"
    ])  # fmt: skip
    torch.testing.assert_close(out, a.float() @ b.float() + c)


def test_products_of_bytes_are_exact() -> None:
    a, b = numbers(torch.int8).view(8, 8), numbers(torch.int8, 1).view(8, 8)
    c, out = torch.zeros(8, 8, dtype=torch.int32), torch.empty(8, 8, dtype=torch.int32)
    kinds = "tensor<8x8xi8> * tensor<8x8xi8> -> tensor<8x8xi32>"
    run([a, b, c], [out], [f"%y0 = tt.dot %x0, %x1, %x2 : {kinds}"])
    np.testing.assert_array_equal(out.numpy(), a.numpy().astype(np.int32) @ b.numpy().astype(np.int32))


# -- reductions and scans ------------------------------------------------------------------------------


def folding(
    kind: str, combine: list[str], a: torch.Tensor, out: torch.Tensor, axis: int, more: str = ""
) -> None:
    of = element(a)
    run([a], [out], [
        f'%y0 = "tt.{kind}"(%x0) <{{axis = {axis} : i32{more}}}> ({{',
        f"^bb0(%p: {of}, %q: {of}):",
        *combine,
        f"tt.{kind}.return %z : {of}",
        f"}}) : ({block(a.shape, of)}) -> {block(out.shape, of)}",
    ])  # fmt: skip


REDUCED: dict[str, tuple[torch.dtype, Callable[..., Any]]] = {
    "arith.addf": (torch.float32, np.sum),
    "arith.addi": (torch.int32, lambda x, axis: np.sum(x, axis=axis, dtype=np.int32)),
    "arith.mulf": (torch.float32, np.prod),
    "arith.maxnumf": (torch.float32, np.max),
    "arith.minnumf": (torch.float32, np.min),
    "arith.maxsi": (torch.int32, np.max),
    "arith.minsi": (torch.int32, np.min),
    "arith.xori": (torch.int32, np.bitwise_xor.reduce),
    "arith.ori": (torch.int32, np.bitwise_or.reduce),
    "arith.andi": (torch.int32, np.bitwise_and.reduce),
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", REDUCED)
def test_reductions(name: str, axis: int) -> None:
    dtype, reference = REDUCED[name]
    a = numbers(dtype).view(4, 16)
    out = torch.empty(16 if axis == 0 else 4, dtype=dtype)
    folding("reduce", [f"%z = {name} %p, %q : {element(a)}"], a, out, axis)
    np.testing.assert_allclose(out.numpy(), reference(a.numpy(), axis=axis), rtol=1e-5)


def test_a_maximum_passes_over_what_is_no_number() -> None:
    a = torch.tensor([[1.0, math.nan, 3.0, 2.0], [math.nan] * 4])
    out = torch.empty(2)
    folding("reduce", ["%z = arith.maxnumf %p, %q : f32"], a, out, 1)
    assert out[0] == 3.0
    assert out[1].isnan()
    folding("reduce", ["%z = arith.maximumf %p, %q : f32"], a, out, 1)
    assert out.isnan().all()


SCANNED: dict[str, Callable[..., Any]] = {
    "arith.addf": np.cumsum,
    "arith.mulf": np.cumprod,
    "arith.maxnumf": np.maximum.accumulate,
}


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", SCANNED)
def test_scans(name: str, axis: int, backwards: bool) -> None:
    a = numbers(torch.float32).view(4, 16)
    out = torch.empty_like(a)
    folding("scan", [f"%z = {name} %p, %q : f32"], a, out, axis, f", reverse = {str(backwards).lower()}")
    array = np.flip(a.numpy(), axis) if backwards else a.numpy()
    expected = SCANNED[name](array, axis=axis)
    expected = np.flip(expected, axis) if backwards else expected
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_a_scan_whose_order_matters() -> None:
    """``h = decay · h + x``: two values at once, and no commutative combination."""
    decay, x = torch.rand(16), torch.randn(16)
    decays, states = torch.empty(16), torch.empty(16)
    kinds = "tensor<16xf32>, tensor<16xf32>"
    run([decay, x], [decays, states], [
        '%r:2 = "tt.scan"(%x0, %x1) <{axis = 0 : i32, reverse = false}> ({',
        "^bb0(%d1: f32, %h1: f32, %d2: f32, %h2: f32):",
        "%d = arith.mulf %d1, %d2 : f32",
        "%k = arith.mulf %h1, %d2 : f32",
        "%h = arith.addf %k, %h2 : f32",
        "tt.scan.return %d, %h : f32, f32",
        f"}}) : ({kinds}) -> ({kinds})",
        "%o = arith.constant dense<1.000000e+00> : tensor<16xf32>",
        "%y0 = arith.mulf %r#0, %o : tensor<16xf32>",
        "%y1 = arith.mulf %r#1, %o : tensor<16xf32>",
    ])  # fmt: skip
    h, expected = 0.0, []
    for d, factor in zip(decay.tolist(), x.tolist(), strict=True):
        h = d * h + factor
        expected.append(h)
    np.testing.assert_allclose(states.numpy(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(decays.numpy(), np.cumprod(decay.numpy()), rtol=1e-4)


def test_histogram() -> None:
    a = torch.randint(0, 8, (SIZE,), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
    out = torch.empty(8, dtype=torch.int32)
    run([a], [out], [f"%y0 = tt.histogram %x0 : {block([SIZE], 'i32')} -> tensor<8xi32>"])
    assert out.tolist() == torch.bincount(a, minlength=8).tolist()
