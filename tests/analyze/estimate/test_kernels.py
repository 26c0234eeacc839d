"""How long kernels take on a GPU: laws that hold for all of them."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from programmes import A100

from gapless.analyze.estimate.spread import SPREADS, UNMEASURED_GPU, UNMEASURED_START, time_spread
from gapless.analyze.kernel_times import cards
from gapless.analyze.kernel_times.durations import device_time, peak
from gapless.analyze.kernel_times.families import family_of
from gapless.analyze.kernel_times.operator_work import work
from gapless.model.gpus import CARDS
from gapless.model.programme import Entry, GpuRates, gpu_limits

SHEETS = [gpu_limits(card) for card in CARDS]
SIZES = {"float32": 4, "float16": 2, "bfloat16": 2}


def product(batch: int, rows: int, columns: int, inner: int, dtype: str = "float32") -> Entry:
    size = SIZES[dtype]
    a, b, c = (batch, rows, inner), (batch, inner, columns), (batch, rows, columns)
    moved = size * math.prod(a) + size * math.prod(b)
    return Entry(
        name="aten::bmm", dtype=dtype, inputs=(a, b), outputs=(c,), reads=moved, writes=size * math.prod(c)
    )


def moving(name: str, shape: tuple[int, ...], dtype: str = "float32") -> Entry:
    each = SIZES[dtype] * math.prod(shape)
    return Entry(
        name=f"aten::{name}", dtype=dtype, inputs=(shape,), outputs=(shape,), reads=each, writes=each
    )


def convolution(batch: int, taken: int, out: int, side: int, window: int, dtype: str = "float32") -> Entry:
    source, weight = (batch, taken, side, side), (out, taken, window, window)
    result = (batch, out, side, side)
    return Entry(
        name="aten::convolution", dtype=dtype, inputs=(source, weight), outputs=(result,),
        reads=SIZES[dtype] * (math.prod(source) + math.prod(weight)), writes=SIZES[dtype] * math.prod(result),
    )  # fmt: skip


def attention(heads: int, length: int, size: int, causal: bool = False, backward: bool = False) -> Entry:
    q = (1, heads, length, size)
    name = "aten::_scaled_dot_product_flash_attention" + ("_backward" if backward else "")
    inputs = (q,) * (6 if backward else 3)
    return Entry(
        name=name, dtype="bfloat16", inputs=inputs, outputs=(q,), causal=causal,
        reads=2 * len(inputs) * math.prod(q), writes=2 * math.prod(q),
    )  # fmt: skip


sides = st.integers(1, 6000)
dtypes = st.sampled_from(sorted(SIZES))
requests = st.one_of(
    st.builds(product, st.integers(1, 64), sides, sides, sides, dtypes),
    st.builds(moving, st.sampled_from(["add", "native_layer_norm", "_softmax", "sum"]),
              st.tuples(sides, sides), dtypes),
    st.builds(convolution, st.integers(1, 64), st.integers(1, 512), st.integers(1, 512), st.integers(3, 64),
              st.sampled_from([1, 3, 5]), dtypes),
    st.builds(attention, st.integers(1, 256), sides, st.sampled_from([64, 128]), st.booleans(),
              st.booleans()),
)  # fmt: skip


@given(requests, st.sampled_from(SHEETS))
@example(product(1, 8192, 8192, 8192), SHEETS[0])
def test_nothing_is_faster_than_the_peak(entry: Entry, gpu: GpuRates) -> None:
    """But for convolutions in fp32, which need fewer flops than their definition says."""
    needed = work(entry)
    time = device_time(needed, gpu)
    if not needed.winograd_products:
        assert time >= needed.flops / (peak(gpu, needed.unit) * 1e3)
    assert time >= 1_000
    assert 0 < time_spread(needed, gpu) < 1.5


@given(requests, st.sampled_from(SHEETS), st.floats(1.0, 20.0))
def test_a_faster_gpu_takes_no_longer(entry: Entry, gpu: GpuRates, factor: float) -> None:
    time = device_time(work(entry), gpu)
    wider = msgspec.structs.replace(gpu, bandwidth=gpu.bandwidth * factor)
    assert device_time(work(entry), wider) <= time * (1 + 1e-9)
    peaks = {field: getattr(gpu, field) * factor for field in ("fp32", "tf32", "fp16", "bf16", "fp8")}
    assert device_time(work(entry), msgspec.structs.replace(gpu, **peaks)) <= time * (1 + 1e-9)


@given(st.integers(1, 64), sides, sides, sides, dtypes, st.sampled_from(SHEETS), st.integers(1, 8))
def test_a_larger_product_takes_no_less(batch, rows, columns, inner, dtype, gpu, times) -> None:
    small = device_time(work(product(batch, rows, columns, inner, dtype)), gpu)
    # The contraction keeps its remainder, so that both begin rows at the same places in memory.
    large = work(product(batch * times, rows, columns, inner, dtype))
    assert device_time(large, gpu) >= small * (1 - 1e-9)


@given(st.integers(64, 4096), st.integers(64, 4096), st.integers(64, 4096), st.sampled_from(SHEETS))
def test_a_row_more_changes_little(rows: int, columns: int, inner: int, gpu: GpuRates) -> None:
    """One more row may begin another row of tiles, of which there are others as wide, or smaller ones."""
    time = device_time(work(product(1, rows, columns, inner)), gpu)
    more = device_time(work(product(1, rows + 1, columns, inner)), gpu)
    assert 0.98 * time <= more <= 1.7 * time


@given(st.sampled_from(["add", "native_layer_norm", "_softmax"]), sides, sides, st.sampled_from(SHEETS))
def test_more_rows_take_no_less(name: str, rows: int, columns: int, gpu: GpuRates) -> None:
    fewer, two = (device_time(work(moving(name, (count, columns))), gpu) for count in (rows, 2 * rows))
    assert fewer <= two <= 2 * fewer * 3.5  # what no longer fits into the cache is slower


@pytest.mark.parametrize("gpu", ["Tesla V100-SXM2-32GB", "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"])
def test_a_large_product_reaches_what_the_gpu_sustains(gpu: str) -> None:
    card = next(sheet for sheet in SHEETS if sheet.name == gpu)
    large = work(product(1, 16384, 16384, 16384))
    share = large.flops / (card.fp32 * 1e3) / device_time(large, card)
    assert share == pytest.approx(cards.reach(card).fp32, rel=0.1)


def test_unmeasured_kernels_have_a_wider_spread() -> None:
    """An unknown GPU, a card that throttles, convolutions in 16 bits, attention's backward pass."""
    large = work(product(1, 8192, 8192, 8192))
    unknown = msgspec.structs.replace(A100, name="NVIDIA GB900")
    modest = next(sheet for sheet in SHEETS if sheet.name == "NVIDIA L4")
    assert time_spread(large, A100) < time_spread(large, unknown) < time_spread(large, modest)
    fp32, half = (work(convolution(32, 256, 256, 28, 3, dtype)) for dtype in ("float32", "float16"))
    assert time_spread(fp32, A100) < time_spread(half, A100)
    forward, backward = (work(attention(64, 4096, 128, backward=which)) for which in (False, True))
    assert time_spread(forward, A100) < time_spread(backward, A100)
    short = work(moving("add", (64, 64)))
    assert time_spread(short, A100) > time_spread(work(moving("add", (8192, 8192))), A100)


def test_short_kernels_are_less_certain_where_nobody_measured_how_long_they_take_to_start() -> None:
    other = next(sheet for sheet in SHEETS if sheet.name == "NVIDIA L40S")
    short, long = (
        work(moving("native_layer_norm", (64, 64))),
        work(moving("native_layer_norm", (65536, 4096))),
    )
    assert time_spread(short, other) == pytest.approx(
        math.hypot(time_spread(short, A100), UNMEASURED_START, UNMEASURED_GPU["memory"])
    )
    assert time_spread(long, other) == pytest.approx(
        math.hypot(time_spread(long, A100), UNMEASURED_GPU["memory"])
    )


def test_every_family_has_its_spread() -> None:
    names = ["add", "copy_", "sum", "sort", "cumsum", "embedding", "scatter_add", "native_batch_norm"]
    families = {family_of(f"aten::{name}") for name in names}
    families |= {family_of("triton::mine"), family_of("mine::op"), family_of("aten::_foreach_add_")}
    assert families <= set(SPREADS)


def test_half_of_causal_attention_is_left_out() -> None:
    whole, half = (work(attention(64, 8192, 128, causal=which)) for which in (False, True))
    assert half.flops == whole.flops / 2
    assert 0.5 < device_time(half, A100) / device_time(whole, A100) < 0.6


def test_attention_does_whole_blocks_of_keys_and_heads_of_32() -> None:
    """As flash attention does: seven keys cost what 64 do, and a head of 16 what one of 32 does."""

    def backward_time(keys: int, size: int) -> float:
        query, key = (64, 8, 4096, size), (64, 8, keys, size)
        name = "aten::_scaled_dot_product_flash_attention"
        return device_time(work(Entry(name=name, dtype="bfloat16", inputs=(query, key, key))), A100)

    assert backward_time(7, 64) == backward_time(64, 64) < backward_time(65, 64)
    assert backward_time(512, 16) == backward_time(512, 32) < backward_time(512, 33) == backward_time(512, 64)


@pytest.mark.parametrize("columns", [1, 2, 7, 64, 128])
def test_batches_on_an_a100_have_one_tile(columns: int) -> None:
    """Of columns a tile has 128, however few are asked for; rows have kernels of their own where few are."""
    wide = device_time(work(product(256, 512, 128, 512)), A100)
    few = device_time(work(product(256, 512, columns, 512)), A100)
    assert few == pytest.approx(wide, rel=0.15) if columns > 1 else few < wide
    assert device_time(work(product(256, 4, 512, 512)), A100) < wide


def test_names_tell_what_a_card_sustains() -> None:
    """By its own measurements or its class's, whatever its name is spelled like."""

    def reach(name: str) -> cards.Reach:
        return cards.reach(msgspec.structs.replace(A100, name=name))

    assert reach("A100-PCIE-40GB") == reach("NVIDIA A100-SXM4-80GB")
    assert [reach(name).modest for name in ("NVIDIA L40S", "NVIDIA L4", "Tesla T4")] == [False, True, True]
    assert reach("NVIDIA L40S").measured_fields == frozenset()
    assert (
        reach("NVIDIA GeForce RTX 4090").measured_fields
        == reach("NVIDIA RTX A6000").measured_fields
        == {"half", "memory"}
    )
    # Cards for players clock higher than their data sheet says; others with the same chips do not.
    games, boards = reach("NVIDIA GeForce RTX 4080"), reach("NVIDIA L40S")
    assert games == reach("NVIDIA GeForce RTX 3090 Ti")
    assert games.measured_fields == frozenset()
    assert games.half > boards.half
    assert games.memory > boards.memory
    assert "half" in reach("RTX-PRO-6000-SERVER").measured_fields
