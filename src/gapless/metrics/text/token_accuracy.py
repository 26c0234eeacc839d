"""The token accuracy of a language model."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.divide import divide
from gapless.metrics.metric import Metric
from gapless.metrics.statistic import Slot, Statistic
from gapless.metrics.text.perplexity import check_tokens, vocabulary_message


class TokenHits(Statistic):
    """The number of correctly predicted tokens, and of all tokens."""

    def __init__(self, ignore_index: int | None, top_k: int) -> None:
        self.ignore_index = ignore_index
        self.top_k = top_k
        slots = {"right": Slot(), "seen": Slot(), "strange": Slot()}
        super().__init__((ignore_index, top_k), slots)

    def count(self, batch: Batch) -> None:
        preds, target = batch.args
        if preds.dim() == target.dim() == 2:
            self._check_labels(preds, target)
            right = preds == target
        else:
            check_tokens(preds, target)
            right = self._is_in_top_k(preds, target)
        invalid = target < 0
        if preds.dim() == 3:
            invalid = invalid | (target >= preds.shape[-1])
        if self.ignore_index is None:
            self.state["seen"].add_(target.numel())
        else:
            kept = target != self.ignore_index
            right, invalid = right & kept, invalid & kept
            self.state["seen"].add_(kept.sum())
        self.state["right"].add_(right.sum())
        self.state["strange"].add_(invalid.sum())

    def _check_labels(self, preds: Tensor, target: Tensor) -> None:
        """Raise ValueError or TypeError unless predictions are tokens that fit the targets."""
        if preds.shape != target.shape:
            raise ValueError(
                "Expected tokens `preds` and `target` to have the same shape, "
                f"but got {tuple(preds.shape)} and {tuple(target.shape)}"
            )
        if preds.is_floating_point() or target.is_floating_point():
            raise TypeError(f"Expected tokens to be integers, but got {preds.dtype} and {target.dtype}")
        if self.top_k > 1:
            raise ValueError(f"Expected scores (B, T, V) for `top_k` of {self.top_k}, but got tokens")

    def _is_in_top_k(self, preds: Tensor, target: Tensor) -> Tensor:
        """Mark the targets that are among the `top_k` highest scores."""
        if self.top_k == 1:
            return preds.argmax(-1) == target
        best = preds.topk(min(self.top_k, preds.shape[-1]), dim=-1).indices
        return (best == target.unsqueeze(-1)).any(-1)

    def complaint(self, count: int) -> str:
        return vocabulary_message(count)


class TokenAccuracy(Metric):
    """The share of target tokens that are predicted; 0 if there are none.

    Predictions and targets are compared position by position: if a model predicts the next token, shift them
    first. A target outside the vocabulary counts as a wrong prediction, and is reported.

    Args:
        ignore_index: a target that does not count.
        top_k: a token counts as predicted if its score is among this many highest.
    """

    torchmetrics_file = None
    is_differentiable = False
    higher_is_better = True
    hits: TokenHits

    def __init__(self, ignore_index: int | None = None, top_k: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        checks.check_optional_integer("ignore_index", ignore_index)
        checks.check_integer_above("top_k", top_k, 0)
        self.ignore_index = ignore_index
        self.top_k = top_k
        self.use("hits", TokenHits(ignore_index, top_k))

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add scores or logits ``(B, T, V)``, or tokens ``(B, T)``, and target tokens ``(B, T)``."""
        self.observe(preds, target)

    def value(self) -> Tensor:
        state = self.hits.state
        return divide(state["right"], state["seen"]).to(self.dtype)
