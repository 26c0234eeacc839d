"""Activations, losses and normalisations."""

from __future__ import annotations

import math

import torch

from gapless.emulation.dry.guesses.guess import (
    Guess,
    between,
    constant,
    convert,
)
from gapless.emulation.dry.guesses.rules import OperatorResult, rule


@rule("sigmoid")
def _sigmoid(result: OperatorResult) -> Guess | None:
    return Guess(1 / (1 + math.exp(-max(-30.0, min(30.0, result.x.mean)))), 0.2, 0.0, 1.0)


@rule("relu", "relu6", "gelu", "silu", "softplus", "leaky_relu", "elu", "mish")
def _activation(result: OperatorResult) -> Guess | None:
    x = result.x
    low = 0.0 if result.base in ("relu", "relu6", "softplus") else max(x.low, -0.3)
    return Guess(max(x.mean, 0.0) + 0.4 * x.spread, 0.6 * x.spread, low, max(x.high, 0.0))


@rule("_softmax", "softmax")
def _softmax(result: OperatorResult) -> Guess | None:
    each = 1 / max(2, result.length(1))
    return Guess(each, each, 0.0, 1.0)


@rule("_log_softmax", "log_softmax")
def _log_softmax(result: OperatorResult) -> Guess | None:
    x = result.x
    return Guess(-math.log(max(2, result.length(1))), min(1.0, x.spread), -math.inf, 0.0)


@rule("logsumexp")
def _logsumexp(result: OperatorResult) -> Guess | None:
    x = result.x
    many = math.log(max(1.0, result.ratio))
    above = min(x.spread**2 / 2, x.spread * math.sqrt(2 * many))  # the largest element is not exceeded by far
    return Guess(x.mean + above + many, 0.1 * x.spread)


@rule("nll_loss_forward", "nll_loss2d_forward", "nll_loss")
def _nll_loss(result: OperatorResult) -> Guess | None:
    if result.position:
        target = result.args[1]
        return (
            convert(constant(float(target.numel())), result.dtype)
            if isinstance(target, torch.Tensor)
            else None
        )
    x = result.x
    total = (
        result.args[1].numel() if result.args[3:4] == (2,) and isinstance(result.args[1], torch.Tensor) else 1
    )
    return Guess(-x.mean * total, 0.02 * abs(x.mean) * total, 0.0)


@rule("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
def _distance_loss(result: OperatorResult) -> Guess | None:
    x, y = result.x, result.y
    if y is None:
        return None
    value = (x.mean - y.mean) ** 2 + x.spread**2 + y.spread**2
    value = value if result.base == "mse_loss" else math.sqrt(value) * 0.8
    count = result.args[0].numel() if result.args[2:3] == (2,) else 1
    return Guess(value * count, 0.05 * value * count, 0.0)


@rule("binary_cross_entropy", "binary_cross_entropy_with_logits", "soft_margin_loss")
def _cross_entropy(result: OperatorResult) -> Guess | None:
    return Guess(math.log(2), 0.1, 0.0)


@rule("multilabel_margin_loss_forward")
def _margin_loss(result: OperatorResult) -> Guess | None:
    return Guess(0.1, 0.3, 0.0, 1.0) if result.position else Guess(1.0, 0.1, 0.0)  # which classes are targets


@rule("kl_div", "_ctc_loss", "ctc_loss")
def _divergence(result: OperatorResult) -> Guess | None:
    return None if result.position else Guess(1.0, 0.1, 0.0)


@rule(
    "native_layer_norm",
    "native_group_norm",
    "native_batch_norm",
    "cudnn_batch_norm",
    "_native_batch_norm_legit",
)
def _normalization(result: OperatorResult) -> Guess | None:
    return (Guess(), Guess(), Guess(1.0, 0.1, 0.0))[min(result.position, 2)]


@rule("_fused_rms_norm")
def _rms_normalization(result: OperatorResult) -> Guess | None:
    return Guess(1.0, 0.1, 0.0) if result.position else Guess()


@rule("max_pool2d_with_indices")
def _max_pool(result: OperatorResult) -> Guess | None:
    x = result.x
    if result.position:
        return between(0, max(0, result.args[0][0, 0].numel() - 1))
    return Guess(min(x.mean + x.spread, x.high), x.spread, x.low, x.high)
