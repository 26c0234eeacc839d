"""The perplexity of a language model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.metric import Metric
from gapless.metrics.statistic import Slot, Statistic


def check_tokens(preds: Tensor, target: Tensor) -> None:
    """Raise ValueError for shapes other than ``(B, T, V)`` and ``(B, T)``, TypeError for other dtypes."""
    if preds.dim() != 3:
        raise ValueError(
            "Input tensor `preds` is expected to have 3 dimensions, [batch_size, seq_len, vocab_size],"
            f" but got {preds.dim()}."
        )
    if target.dim() != 2:
        raise ValueError(
            "Input tensor `target` is expected to have 2 dimensions, [batch_size, seq_len],"
            f" but got {target.dim()}."
        )
    if preds.shape[:2] != target.shape:
        raise ValueError(
            "Input tensors `preds` and `target` are expected to have equaling first two dimensions,"
            f" [batch_size, seq_len], but got {preds.shape[:2]} and {target.shape}."
        )
    if not preds.is_floating_point():
        raise TypeError(
            f"Input tensor `preds` is expected to be of floating point type but got {preds.dtype}."
        )
    if target.dtype != torch.int64:
        raise TypeError(
            f"Input tensor `target` is expected to be of a type {torch.int64} but got {target.dtype}."
        )


def vocabulary_message(count: int) -> str:
    """Return the message about `count` targets outside the vocabulary."""
    return f"Detected {count} token{'s' * (count != 1)} in `target` outside the vocabulary"


class Surprise(Statistic):
    """The sum of the negative log-probabilities of target tokens, and their number."""

    def __init__(self, ignore_index: int | None) -> None:
        self.ignore_index = ignore_index
        slots = {"sum": Slot(dtype=torch.float64), "seen": Slot(), "strange": Slot()}
        super().__init__((ignore_index,), slots)

    def count(self, batch: Batch) -> None:
        preds, target = batch.args
        check_tokens(preds, target)
        vocabulary = preds.shape[-1]
        logits = preds.reshape(-1, vocabulary)
        logits = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
        target = target.reshape(-1)
        token = target.clamp(0, vocabulary - 1)
        invalid = token != target
        if self.ignore_index is not None:
            ignored = target == self.ignore_index
            invalid = invalid & ~ignored
            dropped = invalid | ignored
        else:
            dropped = invalid
        surprise = logits.logsumexp(1) - logits.gather(1, token.unsqueeze(1)).squeeze(1)
        total = self.state["sum"]
        total.add_(surprise.masked_fill(dropped, 0.0).sum(dtype=total.dtype))
        self.state["seen"].add_(target.numel()).sub_(dropped.sum())
        self.state["strange"].add_(invalid.sum())

    def complaint(self, count: int) -> str:
        return vocabulary_message(count)


class Perplexity(Metric):
    """The exponential of the mean negative log-probability per token; `ignore_index` does not count."""

    torchmetrics_slots = (("total_log_probs", "sum"), ("count", "seen"))

    is_differentiable = True
    higher_is_better = False
    surprise: Surprise

    def __init__(self, ignore_index: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if ignore_index is not None and not isinstance(ignore_index, int):
            raise ValueError(
                f"Argument `ignore_index` expected to either be `None` or an `int` but got {ignore_index}"
            )
        self.ignore_index = ignore_index
        self.use("surprise", Surprise(ignore_index))

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add scores or logits ``(B, T, V)`` and target tokens ``(B, T)``."""
        self.observe(preds, target)

    def value(self) -> Tensor:
        state = self.surprise.state
        return torch.exp(state["sum"] / state["seen"]).to(self.dtype)
