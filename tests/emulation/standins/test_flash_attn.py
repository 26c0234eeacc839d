"""flash-attention's stand-in beside plain torch, loop by loop."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.emulation.standins.packages import flash_attn_interface
from gapless.emulation.standins.packages.flash_attn import interface, losses, norms, padding, rotary
from gapless.emulation.standins.packages.flash_attn_interface import PACKAGE
from gapless.errors import NotEmulated

FEW = settings(max_examples=25, deadline=None)
CLOSE = {"atol": 2e-5, "rtol": 2e-5}


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    slopes: torch.Tensor | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """Attention query by query, in float64."""
    batch, queries, heads, width = q.shape
    keys = k.shape[1]
    out = torch.zeros(batch, queries, heads, v.shape[-1], dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            own = h // (heads // k.shape[2])
            for i in range(queries):
                at = i + keys - queries
                visible = [
                    j
                    for j in range(keys)
                    if (not causal or j <= at)
                    and (window[0] < 0 or j >= at - window[0])
                    and (window[1] < 0 or j <= at + window[1])
                ]
                if not visible:
                    continue
                scores = (k[b, visible, own].double() @ q[b, i, h].double()) * (scale or width**-0.5)
                if softcap:
                    scores = softcap * torch.tanh(scores / softcap)
                if slopes is not None:
                    slope = slopes[h] if slopes.dim() == 1 else slopes[b, h]
                    scores = scores - slope * torch.tensor([abs(at - j) for j in visible])
                out[b, i, h] = torch.softmax(scores, 0) @ v[b, visible, own].double()
    return out


@st.composite
def attentions(draw: Any) -> tuple[Any, ...]:
    """Queries, keys and values of any shapes that fit, and any rules."""
    torch.manual_seed(draw(st.integers(0, 10_000)))
    batch, groups, times = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    queries, keys, width = draw(st.integers(1, 7)), draw(st.integers(1, 7)), draw(st.sampled_from([1, 4]))
    q = torch.randn(batch, queries, groups * times, width)
    k, v = (torch.randn(batch, keys, groups, width) for _ in range(2))
    edge = st.integers(-1, 3)
    rules = {
        "causal": draw(st.booleans()),
        "window": (draw(edge), draw(edge)),
        "softcap": draw(st.sampled_from([0.0, 0.7])),
        "slopes": draw(
            st.sampled_from([None, torch.rand(groups * times), torch.rand(batch, groups * times)])
        ),
        "scale": draw(st.sampled_from([None, 0.3])),
    }
    return q, k, v, rules


def flash(q: Any, k: Any, v: Any, rules: dict[str, Any], **more: Any) -> Any:
    return interface.flash_attn_func(
        q,
        k,
        v,
        0.0,
        rules["scale"],
        rules["causal"],
        rules["window"],
        rules["softcap"],
        rules["slopes"],
        **more,
    )


@FEW
@given(attentions())
def test_attention_is_what_it_is_query_by_query(case: Any) -> None:
    q, k, v, rules = case
    expected = reference(q, k, v, **rules)
    torch.testing.assert_close(flash(q, k, v, rules).double(), expected, **CLOSE)
    out, sums, _ = flash(q, k, v, rules, return_attn_probs=True)
    torch.testing.assert_close(out.double(), expected, **CLOSE)
    assert sums.shape == (q.shape[0], q.shape[2], q.shape[1])


@FEW
@given(attentions())
def test_gradients_are_those_of_the_reference(case: Any) -> None:
    q, k, v, rules = case
    ours, expected = [], []
    for function, into in (
        (lambda *qkv: flash(*qkv, rules), ours),
        (lambda *qkv: reference(*qkv, **rules).float(), expected),
    ):
        leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
        out = function(*leaves)
        if not out.requires_grad:  # nobody sees anybody
            return
        into += torch.autograd.grad(
            (out * torch.linspace(-1, 1, out.numel()).reshape(out.shape)).sum(), leaves
        )
    for actual, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(actual, other, atol=1e-4, rtol=1e-4)


def test_stacked_arguments_are_taken_apart() -> None:
    qkv = torch.randn(2, 5, 3, 4, 8)
    q, k, v = qkv.unbind(2)
    expected = interface.flash_attn_func(q, k, v, causal=True)
    assert torch.equal(interface.flash_attn_qkvpacked_func(qkv, causal=True), expected)
    assert torch.equal(interface.flash_attn_kvpacked_func(q, qkv[:, :, 1:], causal=True), expected)


@FEW
@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.booleans(), st.integers(0, 3))
def test_sequences_see_themselves_only(lengths: list[int], causal: bool, more: int) -> None:
    torch.manual_seed(sum(lengths))
    queries = torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)
    keys = torch.tensor([0, *(n + more for n in lengths)]).cumsum(0, dtype=torch.int32)
    q, kv = torch.randn(int(queries[-1]) + 2, 2, 4), torch.randn(int(keys[-1]), 2, 2, 4)
    out = interface.flash_attn_varlen_kvpacked_func(
        q, kv, queries, keys, max(lengths), max(lengths) + more, causal=causal
    )
    for (i, j), (m, n) in zip(queries.unfold(0, 2, 1).tolist(), keys.unfold(0, 2, 1).tolist(), strict=True):
        expected = reference(q[None, i:j], kv[None, m:n, 0], kv[None, m:n, 1], causal=causal)
        torch.testing.assert_close(out[None, i:j].double(), expected, **CLOSE)
    assert not out[int(queries[-1]) :].any()  # what lies behind all sequences


def test_blocks_are_sequences_in_another_order() -> None:
    table = torch.tensor([[2, 0], [1, 3]], dtype=torch.int32)
    blocks = torch.randn(4, 4, 2, 8)
    q = torch.randn(3, 2, 8)
    starts = torch.tensor([0, 1, 3], dtype=torch.int32)
    out = interface.flash_attn_varlen_func(
        q,
        blocks,
        blocks,
        starts,
        torch.tensor([0, 5, 13], dtype=torch.int32),
        2,
        8,
        causal=True,
        block_table=table,
    )
    for row, (i, j, length) in enumerate(((0, 1, 5), (1, 3, 8))):
        own = blocks[table[row].long()].flatten(0, 1)[None, :length]
        torch.testing.assert_close(
            out[None, i:j].double(), reference(q[None, i:j], own, own, causal=True), **CLOSE
        )


@pytest.mark.parametrize("paged", [False, True])
def test_decoding_step_by_step_is_attention_over_all(paged: bool) -> None:
    batch, heads, width, length = 2, 4, 8, 6
    torch.manual_seed(0)
    q, k, v = (torch.randn(batch, length, heads, width) for _ in range(3))
    whole = reference(q, k, v, causal=True)
    table = torch.tensor([[3, 1], [0, 2]], dtype=torch.int32) if paged else None
    shape = (4, 4, heads, width) if paged else (batch, 8, heads, width)
    caches = torch.zeros(shape), torch.zeros(shape)
    done = torch.zeros(batch, dtype=torch.int32)
    for at in range(length):
        step = slice(at, at + 1)
        out = interface.flash_attn_with_kvcache(
            q[:, step], *caches, k[:, step], v[:, step], cache_seqlens=done, causal=True, block_table=table
        )
        torch.testing.assert_close(out.double(), whole[:, step], **CLOSE)
        done += 1
    if not paged:
        assert torch.equal(caches[0][:, :length], k)


@FEW
@given(attentions())
def test_the_third_version_attends_as_the_second(case: Any) -> None:
    q, k, v, rules = case
    rules["slopes"] = None
    third: dict[str, Any] = {"causal": rules["causal"], "window_size": rules["window"]}
    third |= {"softmax_scale": rules["scale"], "softcap": rules["softcap"]}
    out, sums = flash_attn_interface.flash_attn_func(q, k, v, return_attn_probs=True, **third)
    assert torch.equal(out, flash(q, k, v, rules, return_attn_probs=True)[0])
    assert sums.shape == (q.shape[0], q.shape[2], q.shape[1])
    starts = [torch.arange(q.shape[0] + 1, dtype=torch.int32) * tensor.shape[1] for tensor in (q, k)]
    flat = [tensor.flatten(0, 1) for tensor in (q, k, v)]
    apart = flash_attn_interface.flash_attn_varlen_func(*flat, *starts, q.shape[1], k.shape[1], **third)
    torch.testing.assert_close(apart.view_as(out), out, **CLOSE)


def test_of_the_third_version_s_sequences_as_much_counts_as_is_used() -> None:
    q, starts = torch.randn(10, 2, 4), torch.tensor([0, 6, 10], dtype=torch.int32)
    used = torch.tensor([3, 4], dtype=torch.int32)
    out = flash_attn_interface.flash_attn_varlen_func(q, q, q, starts, starts, 6, 6, used, used, causal=True)
    assert not out[3:6].any()
    for begin, end in ((0, 3), (6, 10)):
        own = q[None, begin:end]
        expected = reference(own, own, own, causal=True)
        torch.testing.assert_close(out[None, begin:end].double(), expected, **CLOSE)


def test_the_third_version_takes_stacked_heads() -> None:
    q, kv = torch.randn(2, 5, 4, 8), torch.randn(2, 5, 4, 8)
    k, v = kv.split(2, 2)
    expected = flash_attn_interface.flash_attn_func(q, k, v)
    stacked = flash_attn_interface.flash_attn_qkvpacked_func(torch.cat((q, kv), 2), num_heads_q=4)
    assert torch.equal(stacked, expected)


@pytest.mark.parametrize("option", ["qv", "q_descale", "attention_chunk"])
def test_the_third_version_refuses_what_is_not_computed(option: str) -> None:
    q = torch.randn(1, 4, 2, 8)
    value = 2 if option == "attention_chunk" else q
    with pytest.raises(NotEmulated, match=option):
        flash_attn_interface.flash_attn_func(q, q, q, **{option: value})
    with pytest.raises(NotEmulated, match="with_kvcache"):
        PACKAGE.modules["flash_attn_interface"]["flash_attn_with_kvcache"](q, q, q)


@pytest.mark.parametrize(("gpu", "is_there"), [("h100", True), ("a100", False)])
def test_the_third_version_is_where_its_gpus_are(gpu: str, is_there: bool) -> None:
    with Emulator(EmulatorOptions(gpu, programme=True)) as emulator:
        spec = importlib.util.find_spec("flash_attn_interface")
        assert (spec is not None) is is_there
        if not is_there:
            with pytest.raises(importlib.metadata.PackageNotFoundError):
                importlib.metadata.version("flash_attn_3")
            return
        assert importlib.metadata.version("flash_attn_3") == "3.0.0"
        q = torch.randn(1, 4, 2, 8, device="cuda", dtype=torch.half, requires_grad=True)
        before = emulator.recorder.total
        importlib.import_module("flash_attn_interface").flash_attn_func(q, q, q, causal=True).sum().backward()
        assert q.grad is not None
        assert emulator.recorder.total == before
        entries = emulator.session().programme.entries
        names = [entry.name for entry in entries if "flash_attn_interface" in entry.name]
        assert len(names) == 2
        assert any("flash_attn_3 is not installed here" in note for note in emulator.session().notes)


def test_dropout_keeps_its_mask_for_the_backward_pass() -> None:
    torch.manual_seed(1)
    q, k, v = (torch.randn(1, 16, 1, 4, requires_grad=True) for _ in range(3))
    before = torch.get_rng_state()
    out = interface.flash_attn_func(q, k, v, dropout_p=0.5)
    after = torch.get_rng_state()
    # The result is linear in the values: their gradient is the dropped weights'.
    (gradient,) = torch.autograd.grad(out.sum(), v)
    assert torch.equal(torch.get_rng_state(), after)
    torch.set_rng_state(before)
    assert torch.equal(interface.flash_attn_func(q, k, v, dropout_p=0.5), out)
    torch.testing.assert_close((gradient * v).sum(), out.sum(), **CLOSE)


# -- padding -------------------------------------------------------------------------------------------


def test_padding_is_removed_and_restored(recorded: Any) -> None:
    hidden = torch.randn(3, 5, 2, 4, device="cuda", requires_grad=True)
    mask = (torch.arange(5)[None] < torch.tensor([5, 0, 3])[:, None]).to("cuda")
    before = recorded.waits()
    tokens, indices, starts, longest, used = padding.unpad_input(hidden, mask)
    assert recorded.waits() - before == 2  # nonzero's size, and the longest length
    assert longest == 5
    back = padding.pad_input(tokens, indices, 3, 5)
    back.sum().backward()
    assert recorded.waits() - before == 2
    assert torch.equal(back, hidden * mask[..., None, None])
    assert torch.equal(hidden.grad, mask[..., None, None].expand_as(hidden).float())
    assert starts.tolist() == [0, 5, 5, 8]
    assert used.tolist() == [5, 0, 3]
    assert starts.dtype is torch.int32


def test_rows_of_several_sequences() -> None:
    lengths = torch.tensor([[2, 3, 0, 0, 0, 0], [3, 2, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0]])
    hidden = torch.arange(18.0).reshape(3, 6, 1)
    tokens, indices, starts, longest = padding.unpad_input_for_concatenated_sequences(hidden, lengths)
    assert starts.tolist() == [0, 2, 5, 8, 10, 16]
    assert longest == 6
    assert tokens.flatten().tolist() == [*range(5), *range(6, 11), *range(12, 18)] == indices.tolist()


# -- rotary, norms, losses -----------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("offset", [0, 2, "each"])
def test_rotation_is_a_product_of_complex_numbers(interleaved: bool, offset: Any) -> None:
    x = torch.randn(2, 3, 2, 10)
    angles = torch.rand(8, 4) * 6
    offsets = torch.tensor([1, 4]) if offset == "each" else offset
    out = rotary.apply_rotary_emb(x, angles.cos(), angles.sin(), interleaved, False, offsets)
    pairs = x[..., :8].unflatten(-1, (4, 2) if interleaved else (2, 4))
    pairs = pairs if interleaved else pairs.transpose(-1, -2)
    starts = offsets if offset == "each" else torch.full((2,), offset)
    turn = torch.polar(torch.ones(8, 4), angles)[starts[:, None] + torch.arange(3)][:, :, None]
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
    turned = turned.flatten(-2) if interleaved else turned.transpose(-1, -2).flatten(-2)
    torch.testing.assert_close(out, torch.cat((turned, x[..., 8:]), -1))


def test_rotation_in_place_and_back(gradients: Callable[..., Any]) -> None:
    angles = torch.rand(5, 4)
    cos, sin = angles.cos(), angles.sin()
    qkv = torch.randn(2, 5, 3, 2, 8)
    q, k, v = qkv.unbind(2)
    expected = [rotary.apply_rotary_emb_torch(tensor, cos, sin) for tensor in (q, k)]
    out = rotary.apply_rotary_emb_qkv_(qkv.clone(), cos, sin)
    for actual, other in zip(out.unbind(2), (*expected, v), strict=True):
        torch.testing.assert_close(actual, other)
    kv = rotary.apply_rotary_emb_kv_(qkv[:, :, 1:].clone(), cos, sin)
    torch.testing.assert_close(kv[:, :, 0], expected[1])
    actual = gradients(lambda x: rotary.apply_rotary_emb(x, cos, sin), q)
    same = gradients(lambda x: rotary.apply_rotary_emb_torch(x, cos, sin), q)
    torch.testing.assert_close(actual, same)
    actual = gradients(lambda x: rotary.apply_rotary_emb_qkv_(x.clone(), cos, sin), qkv)
    same = gradients(
        lambda x: torch.stack(
            [*(rotary.apply_rotary_emb_torch(x[:, :, i], cos, sin) for i in (0, 1)), x[:, :, 2]], 2
        ),
        qkv,
    )
    torch.testing.assert_close(actual, same)


def test_packed_sequences_are_rotated_each_from_its_beginning() -> None:
    angles = torch.rand(5, 2)
    x = torch.randn(7, 1, 4)
    starts = torch.tensor([0, 2, 7], dtype=torch.int32)
    out = rotary.apply_rotary_emb(x, angles.cos(), angles.sin(), cu_seqlens=starts, max_seqlen=5)
    for i, j in ((0, 2), (2, 7)):
        own = rotary.apply_rotary_emb(x[None, i:j], angles.cos(), angles.sin())
        torch.testing.assert_close(out[None, i:j], own)


def test_the_embedding_turns_queries_and_keys_alike() -> None:
    embedding = rotary.RotaryEmbedding(8)
    q, k = (torch.randn(1, 1, 1, 8).expand(1, 6, 1, 8) for _ in range(2))
    qkv = embedding(torch.stack((q, k, k), 2))
    scores = torch.einsum("bihd,bjhd->ij", qkv[:, :, 0], qkv[:, :, 1])
    for shift in range(1, 6):  # scores follow from distances alone
        diagonal = scores.diagonal(shift)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-4, rtol=1e-4)


def test_norms_are_torchs(gradients: Callable[..., Any]) -> None:
    x, residual, weight, bias = torch.randn(4, 6), torch.randn(4, 6), torch.rand(6), torch.rand(6)
    pairs = (
        (
            lambda x, r, w, b: norms.layer_norm_fn(x, w, b, r, eps=1e-5),
            lambda x, r, w, b: functional.layer_norm(x + r, (6,), w, b, 1e-5),
        ),
        (
            lambda x, r, w, b: norms.dropout_add_layer_norm(
                x, r, w, b, 0.0, 1e-5, layerscale=b, prenorm=True
            ),
            lambda x, r, w, b: functional.layer_norm(x * b + r, (6,), w, b, 1e-5),
        ),
        (
            lambda x, r, w, b: norms.rms_norm(x, w, 1e-5) + 0 * (r.sum() + b.sum()),
            lambda x, r, w, b: (
                x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w + 0 * (r.sum() + b.sum())
            ),
        ),
    )
    for ours, theirs in pairs:
        out = ours(x, residual, weight, bias)
        torch.testing.assert_close(
            out[0] if isinstance(out, tuple) else out, theirs(x, residual, weight, bias)
        )
        torch.testing.assert_close(
            gradients(ours, x, residual, weight, bias),
            gradients(theirs, x, residual, weight, bias),
            atol=1e-5,
            rtol=1e-4,
        )
    _, total = norms.DropoutAddRMSNorm(6, prenorm=True)(x, residual)
    torch.testing.assert_close(total, x + residual)
    assert (
        norms.DropoutAddLayerNorm(6, prenorm=True, residual_in_fp32=True)(x.half())[1].dtype is torch.float32
    )


def test_cross_entropy_is_torchs(gradients: Callable[..., Any]) -> None:
    logits, labels = torch.randn(5, 7), torch.tensor([1, 6, -100, 0, 3])
    for smoothing in (0.0, 0.1):
        ours = losses.CrossEntropyLoss(label_smoothing=smoothing)

        def theirs(x: torch.Tensor, smoothing: float = smoothing) -> torch.Tensor:
            return functional.cross_entropy(x, labels, label_smoothing=smoothing)

        torch.testing.assert_close(ours(logits, labels), theirs(logits))
        torch.testing.assert_close(
            gradients(lambda x, f=ours: f(x, labels), logits), gradients(theirs, logits)
        )
    loss, square = losses.CrossEntropyLoss(lse_square_scale=0.5, reduction="none", return_z_loss=True)(
        logits, labels
    )
    plain = functional.cross_entropy(logits, labels, reduction="none")
    expected = (0.5 * logits.logsumexp(-1).square()).masked_fill(labels == -100, 0)
    torch.testing.assert_close(square, expected)
    torch.testing.assert_close(loss, plain + expected)


# -- on the device -------------------------------------------------------------------------------------


def test_one_kernel_forward_and_one_backward_and_no_wait(recorded: Any) -> None:
    package = importlib.import_module("flash_attn")
    q, k, v = (
        torch.randn(2, 9, 4, 8, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    )
    before = recorded.waits()
    with recorded.launching() as forward:
        out = package.flash_attn_func(q, k, v, causal=True)
    with recorded.launching() as backward:
        out.backward(torch.ones_like(out))
    assert [launch.name for launch in forward] == ["flash_attn::_flash_attn_forward"]
    assert forward[0].inputs[0] == (2, 4, 9, 8)
    assert [launch.name for launch in backward if "flash_attn" in launch.name] == [
        "flash_attn::_flash_attn_backward"
    ]
    assert backward[0].backward or backward[-1].backward
    assert recorded.waits() == before
    assert out.is_cuda
    assert q.grad.is_cuda
    assert out.dtype is torch.bfloat16
    assert [note for note in recorded.notes() if "flash-attn is not installed here" in note]


def test_a_longest_length_on_the_device_is_read(recorded: Any) -> None:
    q = torch.randn(4, 2, 8, device="cuda", dtype=torch.half)
    starts = torch.tensor([0, 4], dtype=torch.int32, device="cuda")
    before = recorded.waits()
    interface.flash_attn_varlen_func(q, q, q, starts, starts, 4, 4)
    assert recorded.waits() == before
    longest = starts.diff().max()
    interface.flash_attn_varlen_func(q, q, q, starts, starts, longest, 4)
    assert recorded.waits() == before + 1


def test_the_stand_in_refuses_what_the_kernels_refuse(recorded: Any) -> None:
    host = torch.randn(1, 2, 1, 8, dtype=torch.half)
    with pytest.raises(RuntimeError, match="takes CUDA tensors"):
        interface.flash_attn_func(host, host, host)
    single = host.float().to("cuda")
    with pytest.raises(RuntimeError, match="only support fp16 and bf16"):
        interface.flash_attn_func(single, single, single)


def test_checkpointing_computes_again(recorded: Any) -> None:
    q = torch.randn(1, 4, 2, 8, device="cuda", dtype=torch.half, requires_grad=True)
    outputs = []
    for checkpointed in (False, True):
        q.grad = None
        run = lambda x: interface.flash_attn_func(x, x, x, causal=True)  # noqa: E731
        out = torch.utils.checkpoint.checkpoint(run, q, use_reentrant=False) if checkpointed else run(q)
        out.sum().backward()
        outputs.append(q.grad.cpu())
    assert torch.equal(*outputs)


@pytest.mark.parametrize("padded", [False, True])
def test_transformers_takes_it_for_flash_attention(padded: bool, recorded: Any) -> None:
    transformers = pytest.importorskip("transformers")
    # Whether a package is there is cached for the process: other tests may have asked without the stand-in.
    for ask in vars(transformers.utils.import_utils).values():
        if hasattr(ask, "cache_clear"):
            ask.cache_clear()
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=64, max_position_embeddings=64,
    )  # fmt: skip
    ids = torch.randint(0, 64, (2, 12), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(12)[None] < torch.tensor([[12], [7]])).long() if padded else torch.ones_like(ids)
    outputs = []
    for kind in ("sdpa", "flash_attention_2"):
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM._from_config(
            config, attn_implementation=kind, dtype=torch.bfloat16
        )
        model.to("cuda")
        labels = ids.masked_fill(mask == 0, -100).to("cuda")
        loss = model(input_ids=ids.to("cuda"), attention_mask=mask.to("cuda"), labels=labels).loss
        loss.backward()
        outputs.append(loss.item())
    assert math.isclose(*outputs, rel_tol=5e-3)
