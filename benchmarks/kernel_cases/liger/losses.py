"""Liger's losses beside plain torch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from kernel_cases.cases import Case, first
from kernel_cases.liger.names import call


def _labels(size: int = 160, count: int = 64, ignored: bool = True) -> torch.Tensor:
    labels = torch.randint(0, count, (size,))
    if ignored:
        labels[::7] = -100
    return labels


def _cross_entropy(x: Any, **more: Any) -> torch.Tensor:
    return F.cross_entropy(x.x, x.y, **more)


def _capped(x: Any) -> torch.Tensor:
    logits = 30.0 * torch.tanh(x.x / 30.0)
    plain = F.cross_entropy(logits, x.y, label_smoothing=0.1)
    kept = x.y != -100
    return plain + 1e-2 * (logits.logsumexp(-1).square() * kept).sum() / kept.sum()


def _jsd(student: torch.Tensor, teacher: torch.Tensor, beta: float = 0.5) -> torch.Tensor:
    """Of log-probabilities."""
    p, q = teacher.exp(), student.exp()
    middle = (beta * p + (1 - beta) * q).log()
    return (beta * p * (teacher - middle) + (1 - beta) * q * (student - middle)).sum(-1).mean()


def _grpo(x: Any, sequences: bool = False) -> torch.Tensor:
    logp = x.x[:, :-1].log_softmax(-1).gather(-1, x.ids[..., None])[..., 0]
    change = logp - x.old
    ratio = (change.mean(-1, keepdim=True) if sequences else change).exp()
    gain = torch.minimum(ratio * x.a[:, None], ratio.clamp(0.8, 1.2) * x.a[:, None])
    apart = (x.ref - logp).exp() - (x.ref - logp) - 1
    return (-gain + 0.04 * apart).mean(-1).mean()


def _tvd(x: Any) -> torch.Tensor:
    return 0.5 * (x.p - x.q).abs().sum(-1).mean()


LABELS = {"y": _labels}


GRPO = {
    "old": lambda: -4 + torch.randn(2, 10) / 10,
    "ref": lambda: -4 + torch.randn(2, 10) / 10,
    "ids": lambda: torch.randint(0, 64, (2, 10)),
    "a": lambda: torch.randn(2),
}


CASES = [
    Case(
        "cross entropy",
        lambda x: first(
            call(
                "cross_entropy.LigerCrossEntropyFunction", x.x, x.y, None, -100, 0.0, 0.0, "mean", None, False
            )
        ),
        "x=160,D",
        _cross_entropy,
        fixed=LABELS,
    ),
    Case(
        "cross entropy, weighted",
        lambda x: first(
            call("cross_entropy.LigerCrossEntropyFunction", x.x, x.y, x.w, -100, 0.0, 0.0, "sum", None, False)
        ),
        "x=160,D",
        lambda x: _cross_entropy(x, weight=x.w, reduction="sum"),
        fixed={**LABELS, "w": lambda: torch.rand(64)},
    ),
    Case(
        "cross entropy, smoothed, capped, z loss",
        lambda x: first(
            call(
                "cross_entropy.LigerCrossEntropyFunction",
                x.x,
                x.y,
                None,
                -100,
                1e-2,
                0.1,
                "mean",
                30.0,
                False,
            )
        ),
        "x=160,D",
        _capped,
        fixed=LABELS,
    ),
    Case(
        "cross entropy of a part of the vocabulary",
        lambda x: call(
            "vocab_parallel_cross_entropy.LigerVocabParallelCEFunction",
            x.x,
            x.y,
            None,
            -100,
            0.1,
            "pytorch",
            "global",
        ),
        "x=TBD",
        lambda x: F.cross_entropy(
            x.x.flatten(0, 1), x.y.flatten(), reduction="none", label_smoothing=0.1
        ).view_as(x.y),
        fixed={"y": lambda: _labels().view(80, 2)},
    ),
    Case(
        "linear cross entropy",
        lambda x: first(
            call("fused_linear_cross_entropy.LigerFusedLinearCrossEntropyFunction", x.x, x.w, x.y, x.b)
        ),
        "x=160,D w=KD b=K",
        lambda x: F.cross_entropy(F.linear(x.x, x.w, x.b), x.y),
        fixed={"y": lambda: _labels(count=32)},
    ),
    Case(
        "cross entropy and distance",
        lambda x: call("fused_ce_tvd.LigerFusedCETVDFunction", x.x, x.t, x.y, -100),
        "x=160,D",
        lambda x: (
            F.cross_entropy(x.x, x.y, reduction="none"),
            0.5 * (x.x.softmax(-1) - x.t.softmax(-1)).abs().sum(-1),
        ),
        fixed={"t": lambda: torch.randn(160, 64), "y": lambda: _labels(ignored=False)},
    ),
    Case(
        "KL divergence",
        lambda x: call("kl_div.LigerKLDivLossFunction", x.x, x.t, "batchmean", False, 1e-10),
        "x=160,D/log",
        lambda x: F.kl_div(x.x, x.t, reduction="batchmean"),
        fixed={"t": lambda: torch.randn(160, 64).softmax(-1)},
    ),
    Case(
        "Jensen-Shannon divergence",
        lambda x: call("jsd.LigerJSDFunction", x.x, x.t, None, 0.5, -100, None, None),
        "x=160,D/log",
        lambda x: _jsd(x.x, x.t),
        fixed={"t": lambda: torch.randn(160, 64).log_softmax(-1)},
    ),
    Case(
        "Jensen-Shannon divergence of linears",
        lambda x: call("fused_linear_jsd.LigerFusedLinearJSDFunction", x.x, x.w, x.t, x.u),
        "x=160,D w=KD",
        lambda x: _jsd((x.x @ x.w.T).log_softmax(-1), (x.t @ x.u.T).log_softmax(-1)),
        fixed={"t": lambda: torch.randn(160, 64), "u": lambda: torch.randn(32, 64)},
    ),
    Case(
        "KL divergence of a linear",
        lambda x: call("fused_linear_kl_div.LigerFusedLinearKLDivFunction", x.x, x.w, x.t),
        "x=160,D w=KD",
        lambda x: F.kl_div((x.x @ x.w.T).log_softmax(-1), x.t, reduction="batchmean"),
        fixed={"t": lambda: torch.randn(160, 32).softmax(-1)},
    ),
    Case(
        "total variation",
        lambda x: call("tvd.LigerTVDLossFunction", x.p, x.q),
        "p=160,D/soft",
        _tvd,
        fixed={"q": lambda: torch.randn(160, 64).softmax(-1)},
    ),
    Case(
        "GRPO loss",
        lambda x: first(
            call(
                "grpo_loss.GrpoLossFunction", x.x, x.old, x.ref, x.ids, x.a, None, 1.0, 0.04, 0.2, 0.2, False
            )
        ),
        "x=2,11,D",
        _grpo,
        fixed=GRPO,
    ),
    Case(
        "GRPO loss of sequences",
        lambda x: first(
            call(
                "grpo_loss.GrpoLossFunction",
                *(x.x, x.old, x.ref, x.ids, x.a, None, 1.0, 0.04, 0.2, 0.2, False),
                *("grpo", None, True, "sequence"),
            )
        ),
        "x=2,11,D",
        lambda x: _grpo(x, sequences=True),
        fixed=GRPO,
    ),
]
