"""Calls of attention operators, with one parameter name for what the schemas name differently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cache, wraps
from typing import Any, NamedTuple

import torch

from gapless.emulation.kernels import kernel, philox

Tensor = torch.Tensor
_NAMES = {
    "q": "query", "k": "key", "v": "value", "grad_out": "gradient", "grad_out_": "gradient",
    "attn_bias": "bias", "alibi_slopes": "slopes", "dropout_p": "dropout",
    "is_causal": "causal", "custom_mask_type": "causal",
    "window_size": "left", "window_size_left": "left", "window_size_right": "right",
    "cum_seq_q": "ends_q", "cu_seqlens_q": "ends_q", "cum_seq_k": "ends_k", "cu_seqlens_k": "ends_k",
    "max_q": "longest_q", "max_seqlen_q": "longest_q", "max_k": "longest_k", "max_seqlen_k": "longest_k",
    "seqused_k": "used", "seqlen_k": "used", "compute_log_sumexp": "sums_too",
    "bias_requires_grad": "bias_learns", "grad_input_mask": "wanted",
    "rng_state": "seed", "philox_seed": "seed", "unused": "offset", "philox_offset": "offset",
}  # fmt: skip
"""Fields of `AttentionCall` by the parameter names of the operators' schemas."""


class AttentionSettings(NamedTuple):
    """Settings of one attention: additive `bias`, mask, scale, dropout.

    `causal`: row i attends to columns 0 to i. `state` is, in backward, the generator's state at forward.
    """

    bias: Tensor | None = None
    dropout: float = 0.0
    causal: bool = False
    scale: float | None = None
    state: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class AttentionCall:
    """The arguments of an attention operator, forward or backward; fields not in its schema keep defaults.

    Packed sequences have their cumulative lengths in `ends_q` and `ends_k`; only the first `used` columns of
    each count. The sliding window extends `left` and `right` of a row's own column.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    gradient: Any = None
    out: Any = None
    logsumexp: Any = None
    bias: Tensor | None = None
    slopes: Tensor | None = None
    dropout: float = 0.0
    causal: int = False
    scale: float | None = None
    left: int | None = None
    right: int | None = None
    ends_q: Tensor | None = None
    ends_k: Tensor | None = None
    longest_q: int | None = None
    longest_k: int | None = None
    used: Tensor | None = None
    sums_too: bool = False
    bias_learns: bool = False
    wanted: list[bool] = field(default_factory=list)
    seed: Any = None
    offset: Any = None
    q_descale: Tensor | None = None
    k_descale: Tensor | None = None
    v_descale: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value

    @property
    def state(self) -> tuple[int, int]:
        """Seed and offset of the generator in forward; (0, 0) without dropout."""
        if self.dropout == 0 or self.seed is None:
            return 0, 0
        seed, offset = (part.view(torch.int64).reshape(-1).tolist() for part in (self.seed, self.offset))
        both = [*seed, *offset]
        return both[0] % (1 << 64), both[1]

    @property
    def setting(self) -> AttentionSettings:
        return AttentionSettings(self.bias, self.dropout, bool(self.causal), self.scale, self.state)


_FIELDS = frozenset(field_.name for field_ in fields(AttentionCall))


def attention_kernel(name: str) -> Callable[[Callable[[AttentionCall], Any]], Callable[[AttentionCall], Any]]:
    """Register the decorated function, which takes an `AttentionCall`, as the kernel of ATen's `name`."""

    def register(function: Callable[[AttentionCall], Any]) -> Callable[[AttentionCall], Any]:
        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            arguments = {**dict(zip(_parameters(name), args, strict=False)), **kwargs}
            renamed = {_NAMES.get(name, name): value for name, value in arguments.items()}
            return function(
                AttentionCall(**{name: value for name, value in renamed.items() if name in _FIELDS})
            )

        kernel(name)(run)
        return function

    return register


@cache
def _parameters(name: str) -> tuple[str, ...]:
    packet, _, overload = name.partition(".")
    schema = getattr(getattr(torch.ops.aten, packet), overload or "default")._schema
    return tuple(argument.name for argument in schema.arguments)


# -- the generator's state ---------------------------------------------------------------------------


def generator_state(dropout: float) -> tuple[int, int]:
    """Return the default generator's seed and offset; (0, 0) without dropout."""
    return philox.token(torch.default_generator) if dropout > 0 else (0, 0)


def state_as_pair(state: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Encode a state as flash attention returns it: seed and offset in one tensor, and an unused tensor."""
    both = torch.tensor([_to_signed(state[0]), state[1]], dtype=torch.int64).view(torch.uint64)
    return both, torch.zeros((), dtype=torch.int64).view(torch.uint64)


def state_as_scalars(state: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Encode a state as the other kernels return it: one scalar tensor each for seed and offset."""
    return torch.tensor(_to_signed(state[0]), dtype=torch.int64), torch.tensor(state[1], dtype=torch.int64)


def _to_signed(seed: int) -> int:
    return seed - (1 << 64) if seed >> 63 else seed
