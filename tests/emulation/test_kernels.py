"""Kernels that ATen has for CUDA alone, against what they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.errors import NotEmulated
from gapless.torch_internals import VERSION

aten: Any = torch.ops.aten
sdpa = nn.functional.scaled_dot_product_attention


@pytest.fixture
def emulator():
    with Emulator(EmulatorOptions("a100")) as running:
        yield running


def parts(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(3)
    return [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for shape in shapes]


def plainly(query, key, value, bias=None, causal=False, scale=None):
    """Attention by its formula, in the widest numbers."""
    query, key, value = (tensor.double() for tensor in (query, key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        rows, columns = scores.shape[-2:]
        visible = torch.ones(rows, columns, dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~visible, float("-inf"))
    if bias is not None:
        scores = scores + bias
    return scores.softmax(-1) @ value


def assert_agree(
    result: torch.Tensor, expected: torch.Tensor, inputs: list[torch.Tensor], atol: float = 1e-4
) -> None:
    weights = torch.linspace(-1, 1, result.numel(), device="cuda").view_as(result)
    results = torch.autograd.grad((result.float() * weights).sum(), inputs)
    wanted = torch.autograd.grad((expected.float() * weights).sum(), inputs)
    for tensor, other in ((result, expected), *zip(results, wanted, strict=True)):
        torch.testing.assert_close(
            tensor.float(), other.float(), atol=atol, rtol=1e-2 if atol > 1e-3 else 1e-4
        )


@pytest.mark.parametrize("backend", [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION])
@pytest.mark.parametrize("causal", [False, True])
def test_fused_attention_of_halves(emulator, backend: SDPBackend, causal: bool) -> None:
    inputs = parts(*[(2, 4, 6, 16)] * 3, dtype=torch.bfloat16)
    with sdpa_kernel(backend):
        result = sdpa(*inputs, is_causal=causal)
    assert_agree(result, plainly(*inputs, causal=causal), inputs, atol=3e-2)
    assert result.stride() == inputs[0].stride()


def test_fused_attention_pads_heads_and_shares_keys(emulator) -> None:
    inputs = parts((1, 4, 5, 12), (1, 2, 5, 12), (1, 2, 5, 12), dtype=torch.float16)
    result = sdpa(*inputs, enable_gqa=True)
    query, key, value = inputs
    wide = [query, key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)]
    assert_agree(result, plainly(*wide), inputs, atol=1e-2)


def test_efficient_attention_with_a_mask_and_a_bias_that_learns(emulator) -> None:
    *inputs, bias = parts(*[(2, 3, 6, 8)] * 3, (3, 6, 6))
    assert_agree(sdpa(*inputs, attn_mask=bias), plainly(*inputs, bias=bias), [*inputs, bias])
    mask = torch.ones(6, 6, dtype=torch.bool, device="cuda").tril()
    assert_agree(sdpa(*inputs, attn_mask=mask), plainly(*inputs, causal=True), inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_dropout_is_the_same_in_backward(emulator, dtype: torch.dtype) -> None:
    """With the identity for values, what comes out is what was kept; their gradient is its transpose."""
    size = 16
    query, key, value = parts(*[(1, 1, size, size)] * 3, dtype=dtype)
    with torch.no_grad():
        value.copy_(torch.eye(size, device="cuda"))
    out = sdpa(query, key, value, dropout_p=0.5)
    torch.rand(3, device="cuda")  # what is drawn in between changes nothing
    (gradient,) = torch.autograd.grad(out, value, torch.eye(size, device="cuda", dtype=dtype)[None, None])
    torch.testing.assert_close(gradient, out.transpose(-2, -1), atol=2e-3, rtol=0)
    assert 0 < (out == 0).sum() < size * size


def test_the_kernel_is_chosen_as_torch_chooses_it() -> None:
    half, single = torch.randn(1, 2, 8, 16).half(), torch.randn(1, 2, 8, 16)
    for gpu, of_half in (("t4", 2), ("a100", 1), ("h100", 3)):
        with Emulator(EmulatorOptions(gpu)):
            on_device = [tensor.to("cuda") for tensor in (half, single)]
            assert [torch._fused_sdp_choice(tensor, tensor, tensor) for tensor in on_device] == [of_half, 2]
            mask = torch.zeros(8, 8, device="cuda")
            assert torch._fused_sdp_choice(on_device[1], on_device[1], on_device[1], mask) == 2
            assert torch._fused_sdp_choice(*[on_device[1][0]] * 3) == 0
            with sdpa_kernel(SDPBackend.MATH):
                assert torch._fused_sdp_choice(*[on_device[0]] * 3) == 0
            with (
                sdpa_kernel(SDPBackend.FLASH_ATTENTION),
                pytest.raises(RuntimeError, match="No available kernel"),
            ):
                sdpa(*[on_device[1]] * 3)


def test_attention_of_sequences_of_several_lengths_waits_for_nothing(emulator) -> None:
    lengths = [3, 5]
    query, key, value = (tensor.detach() for tensor in parts(*[(sum(lengths), 2, 8)] * 3))
    ends = torch.tensor([0, 3, 8], dtype=torch.int32).to("cuda")
    before = emulator.recorder.total
    out, sums, *_ = aten._flash_attention_forward(query, key, value, ends, ends, 5, 5, 0.0, True, False)
    efficient = aten._efficient_attention_forward(
        query[None], key[None], value[None], None, ends, ends, 5, 5, 0.0, 1, True
    )[0]
    assert emulator.recorder.total == before
    assert sums.shape == (2, sum(lengths))
    begin = 0
    for length in lengths:
        at = slice(begin, begin + length)
        expected = plainly(*(tensor[at].transpose(0, 1) for tensor in (query, key, value)), causal=True)
        for result in (out[at], efficient[0, at]):
            torch.testing.assert_close(result.transpose(0, 1).double(), expected, atol=1e-5, rtol=1e-4)
        begin += length


@pytest.mark.parametrize("library", ["flash", "cudnn"])
def test_attention_writes_into_an_existing_tensor(emulator, library: str) -> None:
    name = f"_{library}_attention_forward_no_dropout_inplace"
    if not hasattr(aten, name):
        pytest.skip(f"torch 2.{VERSION[1]} lacks {name}")
    query, key, value = parts(*[(7, 2, 16)] * 3, dtype=torch.bfloat16)
    ends = torch.tensor([0, 3, 7], dtype=torch.int32).to("cuda")
    before = emulator.recorder.total
    with torch.no_grad():
        out, result = torch.empty_like(query), torch.zeros(7, 2, 16)
        options = (0.0, True, False) if library == "flash" else (True,)
        sums = getattr(aten, name)(out, query, key, value, ends, ends, 4, 4, *options)
        assert emulator.recorder.total == before
        for at in (slice(0, 3), slice(3, 7)):
            of = (tensor[at].transpose(0, 1) for tensor in (query, key, value))
            result[at] = plainly(*of, causal=True).transpose(0, 1).cpu().float()
    assert sums.is_cuda
    assert sums.numel() == 14
    torch.testing.assert_close(out.cpu().float(), result, atol=3e-2, rtol=1e-2)


def test_nested_attention_learns(emulator) -> None:
    result = [torch.randn(length, 16, device="cuda") for length in (3, 6)]
    nested = torch.nested.nested_tensor(result, layout=torch.jagged, requires_grad=True)
    heads = nested.unflatten(-1, (2, 8)).transpose(1, 2)
    sdpa(heads, heads, heads).transpose(1, 2).flatten(-2).values().sum().backward()
    assert nested.grad.values().device.type == "cuda"


PRODUCTS: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "mm": lambda a, b: (torch.mm(a, b, out_dtype=torch.float32), a.float() @ b.float()),
    "bmm": lambda a, b: (
        torch.bmm(a[None], b[None], out_dtype=torch.float32), (a.float() @ b.float())[None]
    ),
    "addmm": lambda a, b: (
        torch.addmm(torch.ones(4, device="cuda"), a, b, out_dtype=torch.float32, alpha=2),
        1 + 2 * a.float() @ b.float(),
    ),
    "out=": lambda a, b: (
        torch.mm(a, b, out_dtype=torch.float32, out=torch.empty(0, device="cuda")), a.float() @ b.float()
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_in_wider_numbers(emulator, name: str) -> None:
    a, b = (torch.randn(4, 4, device="cuda").bfloat16() for _ in range(2))
    result, expected = PRODUCTS[name](a, b)
    assert result.dtype is torch.float32
    assert result.device.type == "cuda"
    torch.testing.assert_close(result, expected)
    with pytest.raises(RuntimeError, match="out_dtype must be the same as input dtype"):
        torch.mm(a, b, out_dtype=torch.float64)


def test_on_the_host_they_are_missing_as_ever(emulator) -> None:
    with pytest.raises(NotImplementedError, match=r"mm\.dtype"):
        torch.mm(torch.ones(2, 2).half(), torch.ones(2, 2).half(), out_dtype=torch.float32)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_recurrent_cells_and_their_gradients(emulator, kind: str) -> None:
    cell = (nn.LSTMCell if kind == "lstm" else nn.GRUCell)(3, 4).cuda()
    x, h, c = parts((2, 3), (2, 4), (2, 4))
    gates = x @ cell.weight_ih.t(), h @ cell.weight_hh.t()
    biases = cell.bias_ih, cell.bias_hh
    if kind == "lstm":
        result = aten._thnn_fused_lstm_cell(*gates, c, *biases)[0]
        expected = cell(x, (h, c))[0]
    else:
        result = aten._thnn_fused_gru_cell(*gates, h, *biases)[0]
        expected = cell(x, h)
    assert_agree(result, expected, [x, h, cell.weight_ih, cell.bias_hh])


def test_normalization_and_convolution_of_cudnn(emulator) -> None:
    x, weight, bias, kernel = parts((2, 3, 5, 5), (3,), (3,), (4, 3, 3, 3))
    result = aten.cudnn_batch_norm(x, weight, bias, None, None, True, 0.1, 1e-5)[0]
    assert_agree(result, nn.functional.batch_norm(x, None, None, weight, bias, True), [x, weight, bias])
    result = aten.cudnn_convolution(x, kernel, [1, 1], [1, 1], [1, 1], 1, False, False, True)
    torch.testing.assert_close(result, nn.functional.conv2d(x, kernel, padding=1))


def test_four_bits_are_unpacked_as_they_were_packed(emulator) -> None:
    numbers = torch.randint(16, (16, 64), device="cuda")
    packed = aten._convert_weight_to_int4pack((numbers[:, ::2] << 4 | numbers[:, 1::2]).to(torch.uint8), 2)
    assert packed.shape == (2, 2, 32, 1)
    scales = torch.ones(2, 16, 2, device="cuda", dtype=torch.bfloat16)
    x = torch.eye(64, device="cuda", dtype=torch.bfloat16)
    result = aten._weight_int4pack_mm(x, packed, 32, scales)
    assert torch.equal(result.float(), (numbers - 8 + 1).t().float())


def test_what_is_only_known_by_its_shape_is_said_once(emulator) -> None:
    compressed = torch.zeros(32 * 32 * 9 // 16, device="cuda", dtype=torch.half)
    for _ in range(2):
        out = torch._cslt_sparse_mm(compressed, torch.ones(32, 8, device="cuda", dtype=torch.half))
    assert out.shape[-1] == 8
    assert out.device.type == "cuda"
    assert not out.any()
    notes = [note for note in emulator.session().notes if "_cslt_sparse_mm" in note]
    assert notes == ["aten::_cslt_sparse_mm is not computed here: its results are zeros of the right shape"]


def test_what_nothing_is_known_of_is_refused_by_name(emulator) -> None:
    with pytest.raises(NotEmulated, match="_sparse_semi_structured_tile needs"):
        torch._sparse_semi_structured_tile(torch.ones(32, 32, device="cuda", dtype=torch.half))


def test_transforms_of_bfloat16_have_the_types_of_float32(emulator) -> None:
    x = torch.linspace(-1, 1, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    if VERSION < (2, 14):
        with pytest.raises(RuntimeError, match="Unsupported dtype BFloat16"):
            torch.fft.rfft(x)
        return
    result, wanted = torch.fft.rfft(x), torch.fft.rfft(x.detach().float())
    assert result.dtype is torch.complex64
    assert torch.fft.hfft(x).dtype is torch.float32
    assert torch.fft.rfft(x.detach(), out=torch.empty(0, dtype=torch.complex64, device="cuda")).is_cuda
    result.abs().sum().backward()
    assert x.grad is not None
    assert x.grad.dtype is torch.bfloat16
    torch.testing.assert_close(result, wanted, atol=0.1, rtol=0.05)
