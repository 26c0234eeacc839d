"""What operators compute and move, and how long that takes: known answers and laws."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programmes import A100

from gapless.analyze.estimate.throughput import measure_throughput
from gapless.analyze.estimate.times import USUAL
from gapless.analyze.estimate.timing import Times
from gapless.analyze.kernel_times.durations import DEFAULT_CLOCK_MHZ, device_time, peak
from gapless.analyze.kernel_times.families import CONVOLUTION, DISTANCE, MATMUL, UNKNOWN
from gapless.analyze.kernel_times.operator_work import TRANSPOSED_FACTOR, work
from gapless.model.gpus import find
from gapless.model.programme import Entry, gpu_limits


def entry(name: str, inputs=(), outputs=(), dtype: str = "float32", size: int = 4, **more) -> Entry:
    def count(shapes):
        return sum(math.prod(shape) for shape in shapes)

    return Entry(
        name=f"aten::{name}", dtype=dtype, inputs=tuple(inputs), outputs=tuple(outputs), tensors=len(inputs),
        elements=count(inputs), reads=size * count(inputs), writes=size * count(outputs), **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("operation", "flops"),
    [
        (entry("mm", [(4, 5), (5, 6)], [(4, 6)]), 2 * 4 * 5 * 6),
        (entry("addmm", [(6,), (4, 5), (5, 6)], [(4, 6)]), 2 * 4 * 5 * 6),
        (entry("bmm", [(3, 4, 5), (3, 5, 6)], [(3, 4, 6)]), 3 * 2 * 4 * 5 * 6),
        (entry("mv", [(4, 5), (5,)], [(4,)]), 2 * 4 * 5),
        # A 1×1 convolution is a matrix product over pixels; four groups have a fourth of the channels.
        (entry("convolution", [(2, 8, 7, 7), (16, 8, 1, 1)], [(2, 16, 7, 7)]), 2 * 2 * 49 * 8 * 16),
        (entry("convolution", [(2, 8, 7, 7), (16, 2, 1, 1)], [(2, 16, 7, 7)]), 2 * 2 * 49 * 2 * 16),
        (entry("convolution", [(2, 8, 9, 9), (16, 8, 5, 5)], [(2, 16, 5, 5)]), 2 * 2 * 25 * 16 * 8 * 25),
        # What Winograd's algorithm saves is no part of the definition.
        (entry("convolution", [(1, 8, 9, 9), (8, 8, 3, 3)], [(1, 8, 9, 9)]), 2 * 81 * 8 * 8 * 9),
        # A layer's weight is transposed, and a bias no factor.
        (entry("linear", [(3, 4, 5), (6, 5), (6,)], [(3, 4, 6)]), 2 * 3 * 4 * 5 * 6),
        # What scales is no factor.
        (entry("_scaled_mm", [(4, 5), (5, 6), (1,), (1,)], [(4, 6)], "float8_e4m3fn", 1), 2 * 4 * 5 * 6),
        # Upsampling: every input pixel meets the whole kernel.
        (entry("convolution", [(1, 8, 4, 4), (8, 3, 2, 2)], [(1, 3, 8, 8)]), 2 * 16 * 8 * 3 * 4),
        (entry("add", [(4, 5), (4, 5)], [(4, 5)]), 0),
    ],
)
def test_flops(operation, flops):
    assert work(operation).flops == pytest.approx(flops)


def test_backward_of_a_convolution_does_what_it_gives():
    shapes = [(2, 16, 7, 7), (2, 8, 7, 7), (16, 8, 1, 1)]
    both = work(entry("convolution_backward", shapes, [shapes[1], shapes[2]]))
    backward = work(entry("convolution_backward", shapes, [shapes[2]]))
    forward = work(entry("convolution", [shapes[1], shapes[2]], [shapes[0]]))
    assert both.flops == 2 * backward.flops == 2 * forward.flops


def test_attention_is_two_products():
    q = (2, 4, 64, 32)
    operation = entry("_scaled_dot_product_flash_attention_for_cpu", [q, q, q], [q])
    assert work(operation).flops == 2 * (2 * 2 * 4 * 64 * 64 * 32)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("aten::mm", MATMUL), ("aten::convolution_backward", CONVOLUTION), ("aten::add_", "pointwise"),
        ("aten::relu_", "pointwise"), ("aten::native_batch_norm_backward", "batch norm"),
        ("aten::native_layer_norm", "layer norm"), ("aten::_foreach_add_", "foreach"),
        ("aten::_fused_adamw_", "foreach"), ("aten::copy_", "copy"), ("aten::index_put_", "indexing"),
        ("mine::mm", UNKNOWN), ("aten::never_heard_of", UNKNOWN),
    ],
)  # fmt: skip
def test_families(name, family):
    assert work(Entry(name=name)).family == family


def test_products_of_a_convolution_do_its_flops():
    """Groups are products of their own; a strided one is as much work backward as forward."""
    for source, weight, result in [
        ((2, 8, 9, 9), (16, 8, 3, 3), (2, 16, 9, 9)),
        ((2, 8, 9, 9), (16, 2, 3, 3), (2, 16, 9, 9)),
        ((2, 8, 8, 8), (16, 8, 2, 2), (2, 16, 4, 4)),
    ]:
        forward = work(entry("convolution", [source, weight], [result]))
        both = work(entry("convolution_backward", [result, source, weight], [source, weight]))
        for operation in (forward, both):
            assert sum(2 * b * m * n * k for b, m, n, k in operation.products) == operation.flops
        assert both.flops == 2 * forward.flops


def test_an_embedding_reads_the_rows_it_gives_and_not_the_table():
    operation = entry("embedding", [(50_000, 512), (8, 16)], [(8, 16, 512)])
    assert work(operation).bytes_moved < 4 * 50_000 * 512 / 10


def test_lists_of_tensors_are_few_launches():
    few = Entry(name="aten::_foreach_add_", tensors=20, elements=2000)
    many = Entry(name="aten::_foreach_add_", tensors=2000, elements=2000)
    huge = Entry(name="aten::_foreach_add_", tensors=20, elements=400_000_000)
    assert work(few).kernels == 1
    assert 1 < work(many).kernels < 200
    assert work(huge).kernels > 1


def test_tensor_cores_are_used_where_the_gpu_has_them():
    half = entry("mm", [(4096, 4096)] * 2, [(4096, 4096)], "bfloat16", 2)
    volta = msgspec.structs.replace(A100, bf16=0.0)
    assert work(half).unit == "bf16"
    assert peak(volta, "bf16") == volta.fp32
    assert device_time(work(half), volta) > device_time(work(half), A100)
    assert work(entry("mm", [(8, 8)] * 2, [(8, 8)], tf32=True)).unit == "tf32"


def test_a_large_product_takes_what_the_data_sheet_says_it_can():
    operation = entry("mm", [(8192, 8192)] * 2, [(8192, 8192)])
    least = 2 * 8192**3 / (A100.fp32 * 1e3)
    assert least <= device_time(work(operation), A100) <= 1.5 * least


names = st.sampled_from(["add", "mm", "convolution", "sum", "_foreach_mul_", "index", "nonzero", "x_y_z"])
shapes = st.lists(st.lists(st.integers(0, 64), max_size=4).map(tuple), max_size=4)


@given(names, shapes, shapes, st.sampled_from(["float32", "float16", "int64", ""]), st.integers(2, 50))
def test_laws_of_device_times(name, inputs, outputs, dtype, factor):
    operation = work(entry(name, inputs, outputs, dtype))
    time = device_time(operation, A100)
    assert time >= 1_000
    assert operation.kernels >= 1
    faster = msgspec.structs.replace(A100, bandwidth=A100.bandwidth * factor, fp32=A100.fp32 * factor,
                                     fp16=A100.fp16 * factor)  # fmt: skip
    assert device_time(operation, faster) <= time
    # Those read what they give, however much there is.
    if operation.family not in ("gather", "scatter"):
        smaller = entry(name, inputs, outputs, dtype)
        larger = msgspec.structs.replace(smaller, reads=smaller.reads * factor)
        assert device_time(work(larger), A100) >= time


def test_the_host_needs_more_for_more_kernels_and_tensors():
    plain = Entry(name="aten::add")
    assert USUAL.operator_time(plain, 3) == USUAL.operator_time(plain, 1) + 2 * USUAL.call
    listed = Entry(name="aten::_foreach_add_", tensors=100, optimizer=True)
    assert USUAL.operator_time(listed, 1) > USUAL.operator_time(Entry(name="aten::add", optimizer=True), 1)
    assert USUAL.scaled(2).operator_time(plain, 2) == 2 * USUAL.operator_time(plain, 2)


IMAGES = (4, 16, 16, 10)


@pytest.mark.parametrize(
    ("operation", "moved", "picked"),
    [
        # A mask over pixels lets 800 of 1,024 through: two passes over it, three numbers for each of them
        # written and read; then 10 channels each, read and written.
        (entry("index", [IMAGES, IMAGES[:3]], [(800, 10)]), 2 * 1024 + 2 * 24 * 800 + 8 * 8000, 8000),
        # Two lists of places: what they hold is read, and a row for each.
        (entry("index", [(50, 60, 7), (9,), (9,)], [(9, 7)]), 16 * 9 + 8 * 63, 63),
        # A list as long as the first side is a list, not a mask.
        (entry("index", [(100, 7), (100,)], [(100, 7)]), 8 * 100 + 8 * 700, 700),
        (entry("index_put_", [(50, 60), (9,), (9,), (9,)], [(50, 60)]), 16 * 9 + 8 * 9, 9),
        # x[:, i]: the places are of the second dimension
        (entry("index", [(5, 600, 7), (90,)], [(5, 90, 7)]), 8 * 90 + 8 * 5 * 90 * 7, 5 * 90 * 7),
        (entry("index_put_", [(5, 60, 7), (9,), (5, 9, 7)], [(5, 60, 7)]), 8 * 9 + 8 * 5 * 9 * 7, 5 * 9 * 7),
    ],
)
def test_what_indexing_moves(operation, moved, picked):
    moving = work(operation)
    assert (moving.bytes_moved, moving.lookups) == (moved, picked)


@pytest.mark.parametrize("name", ["nll_loss_forward", "nll_loss_backward"])
def test_of_each_row_of_scores_a_loss_over_classes_reads_one(name):
    results = [(1000, 50000)] if "backward" in name else [(), ()]
    operation = entry(name, [(1000, 50000), (1000,)], results)
    assert work(operation).bytes_moved - operation.writes == 1000 * (32 + 8)


def test_adding_up_by_index_sorts_the_places():
    """By hand: 10 bits of a place are two passes; a mask costs the same forward and backward."""
    operation = entry("index_put", [IMAGES, IMAGES[:3], (800, 10)], [IMAGES], backward=True)
    forward = work(entry("index", [IMAGES, IMAGES[:3]], [(800, 10)])).bytes_moved
    assert work(operation).bytes_moved == forward + 800 * (3 * 56 + 2 * 32 + 16 + 40)


def test_a_mask_over_every_channel_costs_more_than_one_over_pixels():
    """The same elements, but a place for each of them."""
    shape = (64, 256, 256, 10)
    count = 64 * 256 * 256 // 2
    pixels = entry("index", [shape, shape[:3]], [(count, 10)])
    channels = entry("index", [shape, shape], [(10 * count,)])
    assert device_time(work(channels), A100) > 3 * device_time(work(pixels), A100)


@pytest.mark.parametrize(
    ("whole", "apart"),
    [
        (entry("add", [(4096, 4096)] * 2, [(4096, 4096)], "bfloat16", 2),
         entry("add", [(4096, 4096), (4096, 1)], [(4096, 4096)], "bfloat16", 2)),
        (entry("relu", [(4096, 4096)], [(4096, 4096)], "bfloat16", 2),
         entry("clone", [(4096, 4096)], [(4096, 4096)], "bfloat16", 2)),
    ],
)  # fmt: skip
def test_elements_that_are_moved_one_by_one_take_longer(whole, apart):
    elements = 4096 * 4096
    assert work(apart).strided_elements == elements
    assert device_time(work(apart), A100) > device_time(work(whole), A100)
    assert device_time(work(apart), A100) > elements / (1.4 * A100.multiprocessors * DEFAULT_CLOCK_MHZ / 1e3)
    assert work(entry("add", [(64, 64), ()], [(64, 64)])).strided_elements == 0  # a number is no tensor


def test_how_tensors_lie_tells_how_long_a_copy_takes():
    plain = entry("clone", [(4096, 4096)], [(4096, 4096)], "bfloat16", 2)
    kept, strided, turned = (
        device_time(work(msgspec.structs.replace(plain, order=order)), A100)
        for order in ("kept", "strided", "turned")
    )
    assert kept < strided == device_time(work(plain), A100)
    assert turned == pytest.approx(TRANSPOSED_FACTOR * strided, rel=0.05)


@pytest.mark.parametrize(("order", "kernels"), [("", 1), ("kept", 1), ("strided", 2), ("turned", 2)])
def test_a_norm_copies_what_does_not_lie_in_rows(order, kernels):
    shape = (4096, 4096)
    plain = entry("native_layer_norm", [shape, shape[1:], shape[1:]], [shape])
    operation = work(msgspec.structs.replace(plain, order=order))
    assert operation.kernels == kernels
    assert (operation.first_bytes > 0) is (kernels == 2)
    copy = device_time(work(entry("clone", [shape], [shape])), A100)
    longer = device_time(operation, A100) - device_time(work(plain), A100)
    assert longer >= 0.8 * copy if kernels == 2 else longer == 0


def test_a_layers_weight_is_in_no_cache():
    """On a GPU whose cache would hold it, a batch of products as large is faster."""
    ada = gpu_limits(find("rtx4090"))
    layer = work(entry("mm", [(64, 4096), (4096, 4096)], [(64, 4096)], "bfloat16", 2))
    batch = work(entry("bmm", [(16, 64, 1024), (16, 1024, 1024)], [(16, 64, 1024)], "bfloat16", 2))
    assert (layer.cold_bytes, batch.cold_bytes) == (2 * 4096 * 4096, 0)
    assert device_time(layer, ada) > layer.cold_bytes / ada.bandwidth
    assert device_time(layer, ada) > device_time(layer._replace(cold_bytes=0.0), ada)
    assert device_time(layer, A100) == device_time(layer._replace(cold_bytes=0.0), A100)  # memory is as fast


def test_gradients_of_depthwise_weights_take_longest_with_channels_first():
    image, weight = (64, 96, 56, 56), (96, 1, 3, 3)
    first = entry("convolution_backward", [image, image, weight], [image, weight], "float16", 2)
    last = msgspec.structs.replace(first, channels_last=True)
    assert device_time(work(first), A100) > 1.5 * device_time(work(last), A100)


def test_batch_norms_in_16_bits_gain_less_with_channels_first():
    shape = (64, 256, 56, 56)
    wide, narrow = (
        entry("native_batch_norm", [shape], [shape], dtype, size)
        for dtype, size in (("float32", 4), ("float16", 2))
    )
    last = msgspec.structs.replace(narrow, channels_last=True)
    assert device_time(work(last), A100) < device_time(work(narrow), A100) < device_time(work(wide), A100)


SIDE = (4096, 4096)
MIXED = msgspec.structs.replace(entry("add", [SIDE, SIDE], [SIDE]), reads=6 * 4096 * 4096)


@pytest.mark.parametrize(
    ("operation", "apart"),
    [
        (MIXED, True),  # float32 and bfloat16
        (msgspec.structs.replace(MIXED, compiled=True), False),  # a kernel for these types
        (msgspec.structs.replace(MIXED, name="aten::where.self"), False),
        (entry("add", [SIDE, SIDE], [SIDE], "bfloat16", 2), False),
        (entry("gt.Scalar", [SIDE], [SIDE], "bool", 1), True),
        (entry("logical_not", [SIDE], [SIDE], "bool", 1), False),
        (entry("gt.Scalar", [SIDE], [SIDE], "int64", 8), False),
        (entry("mul", [SIDE, ()], [SIDE], "bfloat16", 2), False),
    ],
)  # fmt: skip
def test_types_that_are_mixed_are_looked_up_for_each_element(operation, apart):
    number = msgspec.structs.replace(operation, inputs=(*operation.inputs, ()), reads=operation.reads + 8)
    for operand in (
        (operation, number) if len(operation.inputs) > 1 else (operation,)
    ):  # a number is no tensor
        assert work(operand).strided_elements == (4096 * 4096 if apart else 0)


@pytest.mark.parametrize(
    ("source", "written_bytes", "apart"),
    [
        ("float32", 2, False),
        ("bfloat16", 4, True),
        ("int64", 4, True),
        ("bool", 4, True),
        ("float32", 4, False),
    ],
)
def test_only_float32_has_copies_of_its_own_to_16_bits(source, written_bytes, apart):
    each = {"float32": 4, "bfloat16": 2, "int64": 8, "bool": 1}[source]
    operation = msgspec.structs.replace(
        entry("_to_copy", [SIDE], [SIDE], source, each), writes=written_bytes * 4096**2
    )
    assert work(operation).strided_elements == (4096 * 4096 if apart else 0)


def test_products_whose_rows_are_no_whole_vectors_take_twice_as_long():
    """Long contractions in 16 bits, by their arithmetic; in fp32 an element is a vector."""

    def time(width: int, dtype: str, size: int) -> float:
        shapes = [(8192, width), (width, 8192)]
        return device_time(work(entry("mm", shapes, [(8192, 8192)], dtype, size)), A100)

    assert time(8191, "bfloat16", 2) == pytest.approx(2 * time(8192, "bfloat16", 2), rel=0.05)
    assert time(8191, "float32", 4) == pytest.approx(time(8192, "float32", 4), rel=0.05)


def test_channels_that_come_last_need_not_be_written_again_for_tensor_cores():
    def time(dtype: str, size: int, side: int = 56, step: int = 2, **more) -> float:
        shapes = [(64, 256, side, side), (64, 256, 1, 1)]
        out = (64, 64, side // step, side // step)
        return device_time(work(entry("convolution", shapes, [out], dtype, size, **more)), A100)

    assert time("float16", 2, channels_last=True) < 0.5 * time("float16", 2)
    assert time("float32", 4, channels_last=True) == time("float32", 4)
    # Windows of one pixel go over whole images, which are products as they lie, in whole vectors.
    assert time("float16", 2, step=1, channels_last=True) == time("float16", 2, step=1)
    odd = time("float16", 2, side=49, step=1, channels_last=True), time("float16", 2, side=49, step=1)
    assert odd[0] < 0.5 * odd[1]


def test_a_gpu_without_tf32_has_its_peak_in_fp32():
    """torch lets convolutions run as TF32 wherever they can: a V100 cannot."""
    operation = entry("mm", [(64, 64)] * 2, [(64, 64)], tf32=True)
    for gpu, unit, top in (("v100", "fp32", 15.7), ("a100", "tf32", 156)):
        done = measure_throughput([(operation,)], [], Times(gpu_limits(find(gpu))))
        assert (done.unit, done.peak) == (unit, top)


class TestTokensInARow:
    """300 indices without a dimension for samples."""

    LOOKED = entry("embedding", [(5000, 64), (300,)], [(300, 64)])
    HEAD = entry("mm", [(300, 64), (64, 5000)], [(300, 5000)])
    ARRIVED = (("int64", (300,)),)
    WEIGHTS = ((256, 64), (256, 64))
    LOOK = entry("_scaled_dot_product_flash_attention", [(1, 4, 300, 16)] * 3, [(1, 4, 300, 16)])

    def done(self, *entries: Entry, arrived=ARRIVED):
        return measure_throughput([entries], [arrived], Times(A100))

    def test_of_words_they_are_tokens_and_no_samples(self):
        done = self.done(self.LOOKED, self.LOOK, self.HEAD)
        assert done.tokens is not None
        assert done.tokens.number == 300
        assert done.tokens.told == "the embedding of 5000×64 is asked for 300 in a row"
        assert done.samples is None
        one_more = (("int64", (301,)),)  # of which the last is only foretold
        assert self.done(self.LOOKED, self.LOOK, self.HEAD, arrived=one_more).samples is None
        assert self.done(self.LOOKED, self.LOOK, self.HEAD, arrived=()).samples is None

    def test_users_and_time_steps_are_samples(self):
        classes = entry("embedding", [(10, 10), (300,)], [(300, 10)])
        for operation, other in (
            (self.LOOKED, entry("mm", [(300, 64), (64, 1)], [(300, 1)])),
            (self.LOOKED, entry("relu", [(300, 64)], [(300, 64)])),
            (self.LOOKED, entry("mm", [(8, 64), (64, 5000)], [(8, 5000)])),
            (classes, entry("mm", [(300, 10), (10, 10)], [(300, 10)])),
        ):
            done = self.done(operation, self.LOOK, other)
            assert done.tokens is None
            assert done.samples is not None
            assert done.samples.number == 300

    @pytest.mark.parametrize(
        ("layer", "row"),
        [
            (LOOK, True),
            (entry("bmm", [(4, 300, 16), (4, 16, 300)], [(4, 300, 300)]), True),
            (entry("bmm", [(4, 300, 16), (4, 16, 8)], [(4, 300, 8)]), False),
            (entry("_cudnn_rnn", [(300, 1, 64), *WEIGHTS], [(300, 1, 64), (2, 1, 64)]), True),
            (entry("_cudnn_rnn", [(1, 300, 64), *WEIGHTS], [(1, 300, 64), (2, 300, 64)]), False),
            (entry("selective_scan"), True),
            (entry("relu", [(300, 64)], [(300, 64)]), False),
        ],
        ids=["attention", "each by each", "products", "steps", "step", "unheard of", "alone"],
    )
    def test_customers_items_are_samples_however_many_are_scored(self, layer, row):
        """The next item of 300 customers at once, as GRU4Rec has it: no row looks at another."""
        done = self.done(self.LOOKED, layer, self.HEAD)
        assert (done.tokens is not None, done.samples is not None) == (row, not row)

    def test_samples_that_something_else_tells_stay(self):
        done = self.done(
            self.LOOKED, self.LOOK, self.HEAD, arrived=(*self.ARRIVED, ("float32", (8, 3, 64, 64)))
        )
        assert done.tokens is not None
        assert done.samples is not None
        assert (done.tokens.number, done.samples.number) == (300, 8)


def test_a_bias_is_a_pass_of_its_own():
    shapes = [(8, 64, 56, 56), (64, 64, 1, 1)]
    out = (8, 64, 56, 56)
    plain, biased = (work(entry("convolution", [*shapes, *more], [out])) for more in ((), ((64,),)))
    added = work(entry("add_", [out, (1, 64, 1, 1)], [out]))
    difference = device_time(biased, A100) - device_time(plain, A100)
    assert difference == pytest.approx(device_time(added, A100), rel=0.3)


def test_few_channels_fill_what_tensor_cores_take_at_once():
    """Three channels of 16 bits take what 32 do; in fp32 they take less."""

    def time(channels, dtype, size):
        operation = entry(
            "convolution", [(64, channels, 64, 64), (512, channels, 9, 9)], [(64, 512, 56, 56)], dtype, size
        )
        return device_time(work(operation), A100)

    assert time(3, "bfloat16", 2) == pytest.approx(time(8, "bfloat16", 2), rel=0.05)
    assert time(8, "bfloat16", 2) == pytest.approx(time(32, "bfloat16", 2), rel=0.05)
    assert time(3, "float32", 4) < 0.6 * time(8, "float32", 4)
    # Kernels without tensor cores need no such thing, and are taken where they are faster.
    assert time(3, "bfloat16", 2) < time(3, "float32", 4)
    assert time(1, "bfloat16", 2) < 0.7 * time(8, "bfloat16", 2)


def test_first_layers_of_images_have_kernels_of_their_own():
    """Where a window goes two pixels at a time, three channels fill eight and not what a step takes."""

    def least(out: int) -> int:
        shapes = [(8, 3, 224, 224), (64, 3, 7, 7)]
        return work(entry("convolution", shapes, [(8, 64, out, out)], "float16", 2)).min_channels

    assert (least(112), least(218)) == (8, 32)


def test_both_gradients_of_a_convolution_read_what_comes_back():
    shapes, weight_shape = [(8, 64, 28, 28), (8, 32, 28, 28), (64, 32, 3, 3)], (8, 32, 28, 28)
    both = work(entry("convolution_backward", shapes, [weight_shape, (64, 32, 3, 3)]))
    assert both.bytes_moved == 4 * (2 * math.prod(shapes[0]) + 2 * math.prod(weight_shape) + 2 * 64 * 32 * 9)


@pytest.mark.parametrize(
    ("name", "shape", "copied"),
    [
        ("addmm", (128,), False),
        ("addmm", (1, 128), False),
        ("addmm", (256, 128), True),
        ("addmm", (), True),
        ("addmm_", (256, 128), False),
        ("baddbmm", (256, 128), True),
    ],
)
def test_what_is_added_to_a_product_is_copied_unless_it_is_a_bias(name, shape, copied):
    """By hand: copied to the result, which the product reads and writes again."""
    factors = [(256, 64), (64, 128)]
    operation = work(entry(name, [shape, *factors], [(256, 128)]))
    count, product = math.prod(shape), 256 * 128
    assert operation.first_bytes == (4 * (count + product) if copied else 0)
    assert operation.first_strided == (product if copied and count != product else 0)
    assert operation.bytes_moved == 4 * (count + 256 * 64 + 64 * 128 + (3 if copied else 1) * product)
    assert operation.kernels == 1 + copied


def test_a_layer_of_one_output_copies_its_bias():
    operation = work(entry("addmm", [(1,), (256, 64), (64, 1)], [(256, 1)]))
    assert (operation.kernels, operation.first_bytes) == (2, 4 * (1 + 256))


def test_layer_norms_of_rows_that_are_no_whole_vectors_take_two_kernels():
    def norm(columns: int):
        shape = (65536, columns)
        return work(entry("native_layer_norm", [shape, (columns,), (columns,)], [shape]))

    assert [norm(columns).kernels for columns in (64, 65, 66, 68)] == [1, 2, 2, 1]
    assert device_time(norm(17), A100) > 3 * device_time(norm(16), A100)
    # Of long ones it is what they read twice.
    assert device_time(norm(8193), A100) == pytest.approx(1.5 * device_time(norm(8192), A100), rel=0.05)


def test_batch_norms_that_take_no_statistics_read_once():
    shape = (8, 64, 28, 28)
    each = 4 * math.prod(shape)
    trained, used = (
        work(entry(name, [shape], [shape]))
        for name in ("native_batch_norm", "_native_batch_norm_legit_no_training")
    )
    assert (trained.bytes_moved, used.bytes_moved) == (3 * each, 2 * each)


def test_small_kernels_start_later_on_older_cards():
    small = work(entry("add", [(8, 8)] * 2, [(8, 8)]))
    old, new = (device_time(small, gpu_limits(find(name))) for name in ("v100", "h100"))
    assert old == pytest.approx(1.4 * new, rel=0.05)


def test_whole_numbers_are_widened_before_they_are_summed_up():
    """By hand: a mask of 4,096 is read, written as 8 bytes each, which are read; and one sum is written."""
    shape = (64, 64)
    counted = Entry(name="aten::sum", dtype="bool", inputs=(shape,), outputs=((),), reads=4096, writes=8)
    assert (work(counted).bytes_moved, work(counted).kernels) == (4096 + 2 * 8 * 4096 + 8, 2)
    short = msgspec.structs.replace(counted, writes=2)
    assert work(short).bytes_moved == 4096 + 2 * 2 * 4096 + 2
    assert (work(short).first_bytes, work(short).first_strided) == ((1 + 2) * 4096, 4096)
    assert work(msgspec.structs.replace(counted, name="aten::any", writes=1)).bytes_moved == 4097
    assert work(entry("sum", [shape], [()])).kernels == 1


def test_pixels_are_made_one_by_one():
    operation = entry("upsample_bilinear2d", [(64, 4, 256, 256)], [(64, 4, 1024, 1024)], "bfloat16", 2)
    assert work(operation).strided_elements == 64 * 4 * 1024 * 1024
    assert device_time(work(operation), A100) > operation.writes / A100.bandwidth * 2


def nll(name: str, rows: int, summed: bool = True, block: int = 0) -> Entry:
    logits, labels, loss = (rows, 10), (rows,), () if summed else (rows,)
    inputs, gradient = ([logits, labels], loss) if "forward" in name else ([loss, logits, labels, ()], logits)
    return msgspec.structs.replace(entry(name, inputs, [gradient]), block=block)


@pytest.mark.parametrize(("name", "reads"), [("nll_loss_forward", 2), ("nll_loss_backward", 1)])
def test_one_block_goes_through_all_rows_of_a_loss(name: str, reads: int):
    """Its threads take turns; how many there are depends on torch's version and on the rows."""
    assert [work(nll(name, rows)).chained_accesses for rows in (32, 4096, 1 << 20)] == [
        reads,
        reads * 16,
        reads << 10,
    ]
    assert work(nll(name, 1 << 20, block=32)).chained_accesses == reads << 15
    assert work(nll(name, 1 << 20, summed=False)).chained_accesses == 0
    images = entry("nll_loss2d_forward", [(16, 10, 256, 256), (16, 256, 256)], [()])
    assert work(images).chained_accesses == 0
    old, new = (device_time(work(nll(name, 1 << 23, block=block)), A100) for block in (32, 0))
    assert old > 10 * new > 10 * device_time(work(nll(name, 1 << 23, summed=False)), A100)


def test_a_distance_of_two_rows_takes_a_block_of_threads():
    """Published with LibreYOLO: four matrices of costs take an RTX 5070 Ti 16 ms."""
    queries, boxes = 31_200, 58
    distances = Entry(
        name="aten::_cdist_forward", dtype="float32", inputs=((queries, 4), (boxes, 4)),
        outputs=((queries, boxes),), elements=queries * boxes, reads=16 * (queries + boxes),
        writes=4 * queries * boxes,
    )  # fmt: skip
    card = gpu_limits(find("rtx5070ti"))
    assert work(distances).family == DISTANCE
    assert 4 * device_time(work(distances), card) == pytest.approx(16e6, rel=0.1)
    wide = msgspec.structs.replace(distances, inputs=((queries, 64), (boxes, 64)))
    assert device_time(work(wide), card) == device_time(work(distances), card)
    back = Entry(
        name="aten::_cdist_backward", dtype="float32", outputs=((queries, 4),), elements=queries * boxes,
        inputs=((queries, boxes), (queries, 4), (boxes, 4), (queries, boxes)), reads=8 * queries * boxes,
        writes=16 * queries,
    )  # fmt: skip
    assert work(back).kernels == 2
    assert work(back).bytes_moved > 2 * 16 * queries * boxes


def norm(side: int, channels: int, backward: bool = False, **more) -> Entry:
    """A batch norm of 128 images, in training."""
    image, row = (128, channels, side, side), (channels,)
    if backward:
        return entry("cudnn_batch_norm_backward", [image, image, row], [image, row, row], **more)
    return entry("cudnn_batch_norm", [image, row, row], [image, row, row], **more)


def pool(backward: bool) -> Entry:
    small, large = (128, 64, 56, 56), (128, 64, 112, 112)
    if backward:
        return entry("max_pool2d_with_indices_backward", [small, large], [large])
    return entry("max_pool2d_with_indices", [large], [small])


ODD = entry("mm", [(8192, 768), (768, 50_257)], [(8192, 50_257)], "bfloat16", 2)


@pytest.mark.parametrize(
    ("operation", "microseconds"),
    [
        (norm(112, 64), 914), (norm(56, 64), 232), (norm(28, 128), 68),
        (norm(112, 64, backward=True), 2317), (norm(56, 64, backward=True), 584),
        (norm(28, 128, backward=True), 164), (pool(False), 405), (pool(True), 1230), (ODD, 6622),
    ],
)  # fmt: skip
def test_times_measured_on_an_h200(operation, microseconds):
    """In profiles of ResNet-18 in fp32 and of GPT-2 under autocast, with torch 2.11 (``benchmarks/gpu``)."""
    assert device_time(work(operation), gpu_limits(find("H200"))) / 1e3 == pytest.approx(
        microseconds, rel=0.25
    )


def test_few_channels_keep_few_multiprocessors_busy():
    few, many = (device_time(work(norm(side, channels)), A100) for side, channels in ((112, 16), (28, 256)))
    assert few > 2 * many
    last = norm(112, 16, channels_last=True)
    assert device_time(work(last), A100) < few / 2
