"""Attention as its operators are called: one name for each thing, whatever the schemas call it."""

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
"""Parameters of the operators, by what `Call` calls them."""


class Setting(NamedTuple):
    """How rows meet columns: an additive `bias`, in backward the `state` of the generator that dropped out.

    `causal` says that a row sees the columns up to its own number.
    """

    bias: Tensor | None = None
    dropout: float = 0.0
    causal: bool = False
    scale: float | None = None
    state: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Call:
    """One call of an attention operator, forward or backward; what its schema lacks is as by default.

    Sequences that lie behind each other have their cumulative lengths in `ends_q` and `ends_k`; of each the
    first `used` columns count. A window goes `left` and `right` of a row's own column.
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
        """The generator's in forward, as a backward pass is given it."""
        if self.dropout == 0 or self.seed is None:
            return 0, 0
        seed, offset = (one.view(torch.int64).reshape(-1).tolist() for one in (self.seed, self.offset))
        both = [*seed, *offset]
        return both[0] % (1 << 64), both[1]

    @property
    def setting(self) -> Setting:
        return Setting(self.bias, self.dropout, bool(self.causal), self.scale, self.state)


_FIELDS = frozenset(one.name for one in fields(Call))


def attends(name: str) -> Callable[[Callable[[Call], Any]], Callable[[Call], Any]]:
    """Register a kernel that takes a `Call` for the overload `name` of ATen."""

    def register(function: Callable[[Call], Any]) -> Callable[[Call], Any]:
        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            given = {**dict(zip(_parameters(name), args, strict=False)), **kwargs}
            renamed = {_NAMES.get(one, one): value for one, value in given.items()}
            return function(Call(**{one: value for one, value in renamed.items() if one in _FIELDS}))

        kernel(name)(run)
        return function

    return register


@cache
def _parameters(name: str) -> tuple[str, ...]:
    packet, _, overload = name.partition(".")
    schema = getattr(getattr(torch.ops.aten, packet), overload or "default")._schema
    return tuple(one.name for one in schema.arguments)


# -- the generator's state ---------------------------------------------------------------------------


def state_now(dropout: float) -> tuple[int, int]:
    """The generator's, before a kernel that drops out."""
    return philox.token(torch.default_generator) if dropout > 0 else (0, 0)


def as_pair(state: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """A state as flash attention gives it: two numbers, and one that is not used."""
    both = torch.tensor([_signed(state[0]), state[1]], dtype=torch.int64).view(torch.uint64)
    return both, torch.zeros((), dtype=torch.int64).view(torch.uint64)


def as_two(state: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """A state as the other kernels give it: a number each."""
    return torch.tensor(_signed(state[0]), dtype=torch.int64), torch.tensor(state[1], dtype=torch.int64)


def _signed(seed: int) -> int:
    return seed - (1 << 64) if seed >> 63 else seed
