"""Composite operators go CUDA's way on the device, with the results of the CPU's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from gapless.emulation import kernels
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.torch_internals import has_any_kernel

Tensor = torch.Tensor
FUSED = pytest.mark.skipif(
    not kernels.fuses_rms_norm(), reason="torch 2.9 is the first with the fused kernel"
)
ROUNDING = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(EmulatorOptions("a100")) as running:
        yield running


class Operators(TorchDispatchMode):
    """Names of the operators that reach the dispatch mode."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name().removeprefix("aten::"))
        return func(*args, **kwargs or {})


def operators(call: Callable[[], Any]) -> list[str]:
    with Operators() as observed:
        call()
    return [name for name in observed.names if name not in ("detach", "empty.memory_format")]


def kept(call: Callable[[], Tensor]) -> list[tuple[torch.dtype, int]]:
    """Types and numbers of elements of the tensors that are kept for backward."""
    results: list[tuple[torch.dtype, int]] = []

    def pack(tensor: Tensor) -> Tensor:
        results.append((tensor.dtype, tensor.numel()))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        call()
    return results


def results(call: Callable[..., Tensor], tensors: list[Tensor]) -> list[Tensor]:
    """The result of `call` and its gradients, on the host in float64."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    out = call(*leaves)
    weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape).to(out)
    return [
        tensor.detach().double().cpu()
        for tensor in (out, *torch.autograd.grad((out * weights).sum(), leaves))
    ]


def assert_agree(call: Callable[..., Tensor], tensors: list[Tensor], dtype: torch.dtype) -> None:
    """On the device as on the host in float64, up to the rounding of `dtype`."""
    rounded = [tensor.to(dtype) for tensor in tensors]
    expected = results(call, [tensor.double() for tensor in rounded])
    for result, wanted in zip(results(call, [tensor.cuda() for tensor in rounded]), expected, strict=True):
        largest = max(1.0, float(wanted.abs().max()))
        torch.testing.assert_close(result, wanted, atol=ROUNDING[dtype] * largest, rtol=0)


# -- RMS normalization -----------------------------------------------------------------------------------


@FUSED
@pytest.mark.parametrize("dtype", list(ROUNDING))
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_rms_norm_has_the_values_and_gradients_of_the_composite(dtype: torch.dtype, data: Any) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    last = shape[data.draw(st.integers(0, len(shape) - 1)) :]
    eps = data.draw(st.sampled_from([None, 1e-6, 0.5]))
    weighted = data.draw(st.booleans())
    torch.manual_seed(data.draw(st.integers(0, 9)))
    x = torch.randn(shape)
    if data.draw(st.booleans()):
        x = x.transpose(0, -1).contiguous().transpose(0, -1)
    tensors = [x, torch.rand(last) + 0.5] if weighted else [x]
    least = torch.finfo(dtype if dtype is torch.float64 else torch.float32).eps if eps is None else eps

    def norm(x: Tensor, weight: Tensor | None = None) -> Tensor:
        return functional.rms_norm(x, last, weight, eps if x.is_cuda else least)

    with Emulator(EmulatorOptions("a100")):
        assert_agree(norm, tensors, dtype)


@FUSED
def test_rms_norm_keeps_its_input_and_a_number_for_each_row(emulator: Emulator) -> None:
    norm = nn.RMSNorm(64).to("cuda", torch.bfloat16)
    x = torch.randn(3, 5, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    assert sorted(kept(lambda: norm(x)), key=str) == [
        (torch.bfloat16, 64), (torch.bfloat16, 3 * 5 * 64), (torch.float32, 3 * 5),
    ]  # fmt: skip
    before = torch.cuda.memory_allocated()
    out = norm(x)
    assert torch.cuda.memory_allocated() - before == out.nbytes + 3 * 5 * 4
    assert type(out.grad_fn).__name__ == "FusedRmsNormBackward0"


@FUSED
def test_rms_norm_is_one_operator_each_way(emulator: Emulator) -> None:
    norm = nn.RMSNorm(8).cuda()
    x = torch.randn(4, 8, device="cuda", requires_grad=True)
    assert operators(lambda: norm(x)) == ["_fused_rms_norm"]
    loss = norm(x).sum()
    assert "_fused_rms_norm_backward" in operators(loss.backward)
    with torch.no_grad():
        assert operators(lambda: norm(x)) == ["_fused_rms_norm"]


@FUSED
def test_composites_go_the_same_way_in_inference_mode() -> None:
    with Emulator(EmulatorOptions("a100", programme=True)) as emulator, torch.inference_mode():
        x = torch.randn(4, 8, device="cuda")
        functional.rms_norm(x, (8,))
        functional.dropout(x, 0.5)
        torch.softmax(x.half(), -1, dtype=torch.float32)
        entries = emulator.recorder.programme.launched_so_far()
    names = {entry.name.removeprefix("aten::") for entry in entries}
    assert names == {"randn", "_fused_rms_norm", "native_dropout", "_to_copy", "_softmax"}


@FUSED
def test_gradients_of_gradients_of_rms_norm(emulator: Emulator) -> None:
    x = torch.randn(3, 4, device="cuda", dtype=torch.float64, requires_grad=True)
    w = torch.rand(4, device="cuda", dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w: functional.rms_norm(x, (4,), w, 1e-3), (x, w))
    assert torch.autograd.gradgradcheck(lambda x, w: functional.rms_norm(x, (4,), w, 1e-3), (x, w))


@FUSED
def test_rms_norm_is_taken_apart_where_cuda_does_so(emulator: Emulator) -> None:
    x = torch.randn(2, 3, 4, 4, device="cuda")
    assert "rsqrt" in operators(
        lambda: functional.rms_norm(x.to(memory_format=torch.channels_last), (3, 4, 4))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says once that it cannot fuse it
        assert "rsqrt" in operators(
            lambda: functional.rms_norm(x.bfloat16(), (4,), torch.ones(4, device="cuda"))
        )
    host = torch.randn(2, 4, requires_grad=True)
    assert "rsqrt" in operators(lambda: functional.rms_norm(host, (4,)))
    assert type(functional.rms_norm(host, (4,)).grad_fn).__name__ != "FusedRmsNormBackward0"


@FUSED
def test_autocast_computes_rms_norm_in_float32(emulator: Emulator) -> None:
    norm = nn.RMSNorm(8).to("cuda", torch.bfloat16)
    x = torch.randn(4, 8, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert operators(lambda: norm(x)).count("_fused_rms_norm") == 1
        assert norm(x).dtype is torch.float32


@FUSED
def test_a_programme_has_rms_norm_as_one_kernel_and_a_dry_run_the_same_memory() -> None:
    peaks = []
    for dry in (False, True):
        with Emulator(EmulatorOptions("a100", programme=True, dry=dry)) as emulator:
            norms = nn.Sequential(*(nn.RMSNorm(256) for _ in range(3))).to("cuda", torch.bfloat16)
            x = torch.randn(64, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            norms(x).sum().backward()
            emulator.recorder.mark("user", "gapless.step")
            peaks.append(torch.cuda.max_memory_allocated())
            programme = emulator.recorder.programme.programme()
        names = [programme.entries[number].name for number in programme.bodies[0]]
        assert names.count("aten::_fused_rms_norm") == names.count("aten::_fused_rms_norm_backward") == 3
        assert "aten::rsqrt" not in names
    assert peaks[0] == peaks[1]


def test_operators_are_the_cpu_s_again_behind_the_emulation() -> None:
    with Emulator(EmulatorOptions("a100")):
        functional.rms_norm(torch.ones(2, 4, device="cuda"), (4,))
    x = torch.randn(2, 4, requires_grad=True)
    assert type(functional.rms_norm(x, (4,)).grad_fn).__name__ != "FusedRmsNormBackward0"
    assert "native_dropout" not in operators(lambda: functional.dropout(x, 0.5))


# -- softmax ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax])
def test_softmax_reads_float16_and_writes_float32(emulator: Emulator, function: Any) -> None:
    x = torch.randn(3, 5, device="cuda", dtype=torch.float16, requires_grad=True)
    (name,) = operators(lambda: function(x, -1, dtype=torch.float32))
    assert name == f"_{function.__name__}"
    assert kept(lambda: function(x, -1, dtype=torch.float32)) == [(torch.float32, 15)]
    assert operators(lambda: function(x.bfloat16(), -1, dtype=torch.float32))[-2:] == ["_to_copy", name]

    def wide(x: Tensor) -> Tensor:
        return function(x, -1, dtype=torch.float32 if x.is_cuda else torch.float64).double()

    assert_agree(wide, [torch.randn(3, 5)], torch.float16)


def test_softmax_under_autocast_has_no_copy_either(emulator: Emulator) -> None:
    x = torch.randn(3, 5, device="cuda", dtype=torch.float16, requires_grad=True)
    with torch.autocast("cuda", dtype=torch.float16):
        assert operators(lambda: x.softmax(-1)) == ["_softmax"]
        out = x.softmax(-1)
    assert out.dtype is torch.float32
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype is torch.float16


# -- dropout, wherever it is called ----------------------------------------------------------------------


def test_dropout_in_the_plain_formula_of_attention_is_one_kernel(emulator: Emulator) -> None:
    parts = [torch.randn(2, 3, 5, 4, device="cuda", requires_grad=True) for _ in range(3)]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        names = operators(lambda: functional.scaled_dot_product_attention(*parts, dropout_p=0.5))
    assert "native_dropout" in names
    assert "bernoulli_.float" not in names


# -- cuDNN's norms and samplers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "weight", "training", "name"),
    [
        (torch.float32, torch.float32, True, "cudnn_batch_norm"),
        (torch.float32, torch.float32, False, "cudnn_batch_norm"),
        (torch.float16, torch.float32, True, "cudnn_batch_norm"),
        (torch.float16, torch.float16, True, "native_batch_norm"),
        (torch.bfloat16, torch.float32, True, "native_batch_norm"),
        (torch.bfloat16, torch.bfloat16, True, "native_batch_norm"),
    ],
)
def test_batch_norm_is_cudnn_s_where_that_takes_it(
    emulator: Emulator, dtype: torch.dtype, weight: torch.dtype, training: bool, name: str
) -> None:
    norm = nn.BatchNorm2d(3).to("cuda", weight).train(training)
    x = torch.randn(2, 3, 4, 4, device="cuda", dtype=dtype, requires_grad=True)
    assert name in operators(lambda: norm(x))
    counters = int(norm.num_batches_tracked)
    assert (counters > 0) is training
    assert all(dtype is not torch.float16 for dtype, _ in kept(lambda: norm(x))[4:])
    norm(x).sum().backward()
    assert norm.weight.grad.dtype is weight
    assert x.grad.dtype is dtype
    with torch.backends.cudnn.flags(enabled=False):
        assert "native_batch_norm" in operators(lambda: norm(x))
    assert "native_batch_norm" in operators(
        lambda: functional.batch_norm(x[..., 0, 0].float(), None, None, training=True)
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_has_the_cpu_s_values(emulator: Emulator, dtype: torch.dtype, training: bool) -> None:
    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        running = [torch.full((3,), value).to(x) for value in (0.2, 1.5)]
        return functional.batch_norm(x, *running, weight, bias, training)

    torch.manual_seed(0)
    assert_agree(norm, [torch.randn(4, 3, 5), torch.rand(3) + 0.5, torch.randn(3)], dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batch_norm_updates_running_statistics(emulator: Emulator, dtype: torch.dtype) -> None:
    x = torch.randn(8, 3, 4, 4)
    on_host, on_device = nn.BatchNorm2d(3), nn.BatchNorm2d(3).to("cuda", dtype)
    on_host(x.to(dtype).float())
    on_device(x.to("cuda", dtype))
    for name in ("running_mean", "running_var"):
        result, wanted = getattr(on_device, name).cpu().float(), getattr(on_host, name)
        torch.testing.assert_close(result, wanted, atol=ROUNDING[dtype], rtol=ROUNDING[dtype])


def test_images_are_sampled_by_cudnn_in_its_one_way(emulator: Emulator) -> None:
    image = torch.randn(1, 2, 4, 4, device="cuda", requires_grad=True)
    grid = torch.rand(1, 3, 3, 2, device="cuda")
    sample = functional.grid_sample
    assert operators(lambda: sample(image, grid, align_corners=True)) == ["cudnn_grid_sampler"]
    assert operators(lambda: sample(image, grid, align_corners=False)) == ["grid_sampler_2d"]
    assert_agree(
        lambda x: sample(x, grid.to(x), align_corners=True), [torch.randn(1, 2, 4, 4)], torch.float32
    )


# -- what is kept for backward ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_statistics_of_layer_norm_are_float32(emulator: Emulator, dtype: torch.dtype) -> None:
    norm = nn.LayerNorm(8).to("cuda", dtype)
    x = torch.randn(4, 8, device="cuda", dtype=dtype, requires_grad=True)
    assert kept(lambda: norm(x)).count((torch.float32, 4)) == 2
    torch.manual_seed(0)
    assert_agree(
        lambda x, w, b: functional.layer_norm(x, (8,), w, b),
        [torch.randn(4, 8), torch.rand(8) + 0.5, torch.randn(8)],
        dtype,
    )


@pytest.mark.parametrize("call", [
    lambda x, w: functional.layer_norm(x, (8,), w, w),
    lambda x, w: functional.group_norm(x, 2, w, w),
])  # fmt: skip
def test_norms_refuse_parameters_of_another_type(emulator: Emulator, call: Any) -> None:
    x, w = torch.randn(4, 8, device="cuda"), torch.ones(8, device="cuda")
    with pytest.raises(RuntimeError, match=r"^expected scalar type BFloat16 but found Float$"):
        call(x.bfloat16(), w)
    with pytest.raises(RuntimeError, match=r"^expected scalar type Float but found Half$"):
        call(x, w.half())
    call(x.cpu().bfloat16(), w.cpu())  # which the CPU takes


def test_log_sigmoid_keeps_nothing_but_its_input(emulator: Emulator) -> None:
    x = torch.randn(7, device="cuda", requires_grad=True)
    assert kept(lambda: functional.logsigmoid(x)) == [(torch.float32, 7), (torch.float32, 0)]
    for dtype in ROUNDING:
        assert_agree(functional.logsigmoid, [torch.linspace(-20, 20, 9)], dtype)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("include_last", [False, True])
def test_embedding_bags(emulator: Emulator, mode: str, include_last: bool) -> None:
    indices = torch.tensor([1, 2, 4, 5, 4, 3])
    offsets = torch.tensor([0, 2, 2, 6] if include_last else [0, 2, 2])

    def look_up(weight: Tensor) -> Tensor:
        data = (indices.cuda(), offsets.cuda()) if weight.is_cuda else (indices, offsets)
        return functional.embedding_bag(data[0], weight, data[1], mode=mode, include_last_offset=include_last)

    assert_agree(look_up, [torch.randn(8, 3)], torch.float32)
    weight = torch.randn(8, 3, device="cuda", requires_grad=True)
    assert (torch.int64, 6) in kept(lambda: look_up(weight))  # the bag of each index


# -- all of it -------------------------------------------------------------------------------------------


def test_every_overload_of_ones_own_has_a_kernel() -> None:
    from gapless.emulation.dispatch.composites import PARTS, overload

    on_device = [name for name in kernels.REPLACED if has_any_kernel(f"aten::{name}")]
    assert len(on_device) > 12  # not all versions of torch have all of them
    for name in on_device:
        assert kernels.find_kernel(overload(name))[0] == "kernel"
    assert sum(has_any_kernel(f"aten::{name}") for name in PARTS) >= len(PARTS) - 1
