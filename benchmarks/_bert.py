"""BERT-large, trained in the ways of a published table of what that takes of a 16 GB V100.

gapless check --dry --memory --gpu v100 _bert.py --batch 4
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification


class Softmax(torch.autograd.Function):
    """Softmax as torch had it before 1.11: keeps its input for backward as well as its output."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(scores, -1)
        ctx.save_for_backward(scores, weights)
        return weights

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        weights = ctx.saved_tensors[1]
        return torch._softmax_backward_data(gradient, weights, -1, weights.dtype)


def softmax(scores: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Stand in for ``torch.nn.functional.softmax`` over the last dimension; float32 under autocast."""
    wide = scores.float() if dtype is not None or torch.is_autocast_enabled("cuda") else scores
    return Softmax.apply(wide)  # type: ignore[no-any-return, no-untyped-call]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--half", action="store_true", help="autocast to float16")
    parser.add_argument("--softmax-of-today", action="store_true", help="it does not keep its input")
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    # bert-large-uncased with eager attention and zeroed gradients, as they were at that time.
    config = BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
        attn_implementation="eager",
    )  # fmt: skip
    if not options.softmax_of_today:
        nn.functional.softmax = softmax  # type: ignore[assignment]
    model = BertForSequenceClassification(config).cuda().train()
    if options.checkpoint:
        model.gradient_checkpointing_enable({"use_reentrant": True})
        model.enable_input_require_grads()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, foreach=False)
    scaler = torch.amp.GradScaler("cuda", enabled=options.half)
    for _ in range(options.steps):
        for _ in range(options.accumulate):
            ids = torch.randint(100, 30_000, (options.batch, 512)).cuda()
            labels = torch.zeros(options.batch, dtype=torch.long).cuda()
            with torch.autocast("cuda", torch.float16) if options.half else nullcontext():
                loss = model(input_ids=ids, labels=labels).loss / options.accumulate
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=False)


if __name__ == "__main__":
    main()
