"""flash-attention 3, which is imported under a name of its own: attention without dropout, slopes and fp8."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gapless.emulation.standins.fused_attention import NO_WINDOW, AttentionRules
from gapless.emulation.standins.package import Package
from gapless.emulation.standins.packages.flash_attn.interface import attention, attention_apart
from gapless.emulation.support.refusals import refuse

PACKAGE = Package(
    "flash_attn_interface",
    "flash_attn_3",
    "3.0.0",
    lacks="fp8, chunks, a second query (qv) and decoding with a cache are missing",
    capability=(9, 0),
    requests=("flash_attention_3",),
)
_NAME = PACKAGE.name
_FORMS = ("qv", "q_descale", "k_descale", "v_descale", "attention_chunk")


def _refuse_unsupported(name: str, options: dict[str, Any]) -> None:
    """Raise NotEmulated for options that change results and are not computed."""
    values = {option: options.get(option) for option in _FORMS}
    unsupported = [option for option, value in values.items() if isinstance(value, Tensor) or value]
    if unsupported:
        raise refuse(f"`{_NAME}.{name}` with {' and '.join(unsupported)}", "Omit it for this check.")


@PACKAGE.provides(_NAME)
def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = NO_WINDOW,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """Attention over ``[batch, length, heads, width]``; with `return_attn_probs` the rows' sums as well."""
    _refuse_unsupported("flash_attn_func", locals())
    left, right = window_size
    rules = AttentionRules(softmax_scale, causal, (left, right), softcap)
    return attention(f"{_NAME}::_flash_attn", rules, return_attn_probs, q, k, v)


@PACKAGE.provides(_NAME)
def flash_attn_qkvpacked_func(
    qkv: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = NO_WINDOW,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: int | None = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """Attention of ``[batch, length, 3, heads, width]``, or of concatenated heads."""
    _refuse_unsupported("flash_attn_qkvpacked_func", locals())
    if qkv.dim() == 5:
        q, k, v = qkv.unbind(-3)
    else:
        assert num_heads_q is not None
        heads = (qkv.shape[2] - num_heads_q) // 2
        q, k, v = qkv.split([num_heads_q, heads, heads], -2)
    more = {"window_size": window_size, "softcap": softcap, "return_attn_probs": return_attn_probs}
    return flash_attn_func(q, k, v, softmax_scale, causal, **more)  # type: ignore[arg-type]


@PACKAGE.provides(_NAME)
def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = NO_WINDOW,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """Attention within each of the sequences in ``[tokens, heads, width]``, or its first `seqused` tokens.

    The package's binding takes the longest lengths as numbers: a tensor is read, which waits.
    """
    _refuse_unsupported("flash_attn_varlen_func", locals())
    int(max_seqlen_q), int(max_seqlen_k)
    left, right = window_size
    rules = AttentionRules(softmax_scale, causal, (left, right), softcap)
    starts, used = (cu_seqlens_q, cu_seqlens_k), (seqused_q, seqused_k)
    return attention_apart(
        f"{_NAME}::_flash_attn_varlen", rules, return_attn_probs, q, k, v, *starts, used=used
    )


def _make_refusal(name: str) -> Any:
    def function(*_: Any, **__: Any) -> Any:
        raise refuse(f"`{_NAME}.{name}`", "flash_attn_func and flash_attn_varlen_func are computed.")

    return function


for _missing in ("flash_attn_with_kvcache", "flash_attn_combine", "get_scheduler_metadata"):
    PACKAGE.holds(_NAME, **{_missing: _make_refusal(_missing)})
