"""Delta rules with preconditioned keys, and cyclic flow attention."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from kernel_cases.cases import Case, first
from kernel_cases.fla.names import op

GATES = "v=BTHV ga=BTH/gate ba=BTH/sig beta=BTH/sig"
CYCLIC = "q=BTHK k=BTHK v=BTHV g=BTH/gate d=BTH/small beta=BTH/sig r=2,15,15 qw=K kw=K"


def _unit(value: torch.Tensor) -> torch.Tensor:
    return F.normalize(value, dim=-1)


def _gated(x: Any) -> torch.Tensor:
    return first(
        op("precond_gated_delta_rule.naive_recurrent_precond_gated_delta_rule")(
            x.q, x.k, x.v, x.ga, x.g, x.ba, x.beta
        )
    )


def _kimi(x: Any) -> torch.Tensor:
    return first(
        op("precond_kda.naive_recurrent_precond_kda")(_unit(x.q), _unit(x.k), x.v, x.g, x.ga, x.ba, x.beta)
    )


def _cyclic(x: Any, name: str, **more: Any) -> torch.Tensor:
    op("cyfa.utils._readout_basis").cache_clear()  # it would hand out a tensor of an emulation that has ended
    return first(op(f"cyfa.{name}")(x.q, x.k, x.v, x.g, x.d, x.beta, x.r, x.qw, x.kw, 1e-6, 1e-6, **more))


CASES = [
    Case(
        "preconditioned gated delta rule, chunk",
        lambda x: first(
            op("precond_gated_delta_rule.chunk_precond_gated_delta_rule")(
                x.q, x.k, x.v, x.ga, x.g, x.ba, x.beta
            )
        ),
        f"q=BTHK k=BTHK {GATES} g=BTH/gate",
        _gated,
    ),
    Case(
        "preconditioned gated delta rule, recurrent",
        lambda x: first(
            op("precond_gated_delta_rule.fused_recurrent_precond_gated_delta_rule")(
                x.q, x.k, x.v, g=x.g, beta=x.beta, g_atk=x.ga, beta_atk=x.ba
            )
        ),
        f"q=BTHK k=BTHK {GATES} g=BTH/gate",
        _gated,
        backward=False,
    ),
    Case(
        "preconditioned Kimi delta attention, chunk",
        lambda x: first(op("precond_kda.chunk_precond_kda")(x.q, x.k, x.v, x.g, x.ga, x.ba, x.beta)),
        f"q=BTHK k=BTHK {GATES} g=BTHK/slow",
        _kimi,
    ),
    Case(
        "preconditioned Kimi delta attention, safe gate",
        lambda x: first(
            op("precond_kda.chunk_precond_kda")(
                x.q, x.k, x.v, x.g, x.ga, x.ba, x.beta, safe_gate=True, lower_bound=-5.0
            )
        ),
        f"q=BTHK k=BTHK {GATES} g=BTHK/slow",
        _kimi,
    ),
    Case(
        "preconditioned Kimi delta attention, recurrent",
        lambda x: first(
            op("precond_kda.fused_recurrent_precond_kda")(x.q, x.k, x.v, x.g, x.ga, x.ba, x.beta)
        ),
        f"q=BTHK k=BTHK {GATES} g=BTHK/slow",
        _kimi,
        backward=False,
    ),
    Case(
        "cyclic flow attention, chunk",
        lambda x: _cyclic(x, "chunk_cyfa"),
        CYCLIC,
        lambda x: _cyclic(x, "naive_recurrent_cyfa"),
    ),
    Case(
        "cyclic flow attention of wide keys, chunk",
        lambda x: _cyclic(x, "chunk_cyfa", checkpoint_level=1),
        CYCLIC.replace("BTHK", "BTH,160").replace("w=K", "w=160"),
        lambda x: _cyclic(x, "naive_recurrent_cyfa"),
    ),
    Case(
        "cyclic flow attention, recurrent",
        lambda x: _cyclic(x, "fused_recurrent_cyfa"),
        CYCLIC,
        lambda x: _cyclic(x, "naive_recurrent_cyfa"),
        backward=False,
    ),
    Case(
        "cyclic flow attention, one token",
        lambda x: _cyclic(x, "fused_recurrent_cyfa"),
        CYCLIC.replace("BT", "B1"),
        lambda x: _cyclic(x, "naive_recurrent_cyfa"),
        backward=False,
    ),
]
