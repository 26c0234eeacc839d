"""Gates, and what packs and balances."""

from __future__ import annotations

from typing import Any

import torch

from kernel_cases.cases import Case
from kernel_cases.fla.names import op


def summed(value: torch.Tensor, size: int = 32) -> torch.Tensor:
    """Sums within chunks of `size` along the time."""
    return torch.cat([part.cumsum(1) for part in value.split(size, 1)], 1)


def _additive(x: Any) -> tuple[torch.Tensor, torch.Tensor]:
    total = x.x.logcumsumexp(1)
    change = torch.cat((torch.zeros_like(total[:, :1]), total[:, :-1] - total[:, 1:]), 1)
    return (x.x - total).exp(), change


CASES = [
    Case(
        "gate of the gated delta rule",
        lambda x: op("gated_delta_rule.gate.fused_gdn_gate")(x.g, x.a, x.b),
        "g=BTH a=H b=H",
        lambda x: op("gated_delta_rule.gate.naive_gdn_gate")(x.g, x.a, x.b),
    ),
    Case(
        "gate of the gated delta rule, summed",
        lambda x: op("gated_delta_rule.gate.gdn_gate_chunk_cumsum")(x.g, x.a, 32, dt_bias=x.b),
        "g=BTH a=H b=H",
        lambda x: summed(op("gated_delta_rule.gate.naive_gdn_gate")(x.g, x.a, x.b)),
        backward=False,
    ),
    Case(
        "gate of Kimi delta attention",
        lambda x: op("kda.gate.fused_kda_gate")(x.g, x.a, x.b),
        "g=BTHK a=H b=D",
        lambda x: op("kda.gate.naive_kda_gate")(x.g, x.a, x.b),
    ),
    Case(
        "gate of Kimi delta attention, bounded",
        lambda x: op("kda.gate.fused_kda_gate")(x.g, x.a, x.b, -5.0),
        "g=BTHK a=H b=D",
        lambda x: op("kda.gate.naive_kda_lowerbound_gate")(x.g, x.a, x.b, -5.0),
    ),
    Case(
        "gate of Kimi delta attention, summed",
        lambda x: op("kda.gate.kda_gate_chunk_cumsum")(x.g, x.a, 32, dt_bias=x.b),
        "g=BTHK a=H b=D",
        lambda x: summed(op("kda.gate.naive_kda_gate")(x.g, x.a, x.b)),
        backward=False,
    ),
    Case(
        "scaled sigmoid",
        lambda x: op("common.gate.fused_beta_sigmoid")(x.x, 2.0),
        "x=BTH",
        lambda x: 2.0 * x.x.sigmoid(),
    ),
    Case(
        "additive gate",
        lambda x: op("gsa.gate.fused_additive_gate")(x.x)[:2],
        "x=BTHM",
        _additive,
    ),
    Case(
        "balanced matrices",
        lambda x: op("utils.sinkhorn.sinkhorn")(x.x, 5),
        "x=BT,4,4",
        lambda x: op("utils.sinkhorn.naive_sinkhorn")(x.x, 5),
    ),
    Case(
        "packing",
        lambda x: op("utils.pack.pack_sequence")(x.x, x.ends),
        "x=BTD",
        lambda x: torch.cat((x.x[0, -30:], x.x[1, -50:])),
        fixed={"ends": lambda: torch.tensor([0, 30, 80])},
    ),
]
