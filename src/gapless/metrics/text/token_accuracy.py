"""How many tokens a language model predicts."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.divide import divide
from gapless.metrics.metric import Metric
from gapless.metrics.statistic import Slot, Statistic
from gapless.metrics.text.perplexity import check_tokens, outside_vocabulary


class Hits(Statistic):
    """Tokens predicted rightly, and tokens."""

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
            right = self._among_best(preds, target)
        strange = target < 0
        if preds.dim() == 3:
            strange = strange | (target >= preds.shape[-1])
        if self.ignore_index is None:
            self.state["seen"].add_(target.numel())
        else:
            kept = target != self.ignore_index
            right, strange = right & kept, strange & kept
            self.state["seen"].add_(kept.sum())
        self.state["right"].add_(right.sum())
        self.state["strange"].add_(strange.sum())

    def _check_labels(self, preds: Tensor, target: Tensor) -> None:
        if preds.shape != target.shape:
            raise ValueError(
                "Expected tokens `preds` and `target` to have the same shape, "
                f"but got {tuple(preds.shape)} and {tuple(target.shape)}"
            )
        if preds.is_floating_point() or target.is_floating_point():
            raise TypeError(f"Expected tokens to be integers, but got {preds.dtype} and {target.dtype}")
        if self.top_k > 1:
            raise ValueError(f"Expected scores (B, T, V) for `top_k` of {self.top_k}, but got tokens")

    def _among_best(self, preds: Tensor, target: Tensor) -> Tensor:
        if self.top_k == 1:
            return preds.argmax(-1) == target
        best = preds.topk(min(self.top_k, preds.shape[-1]), dim=-1).indices
        return (best == target.unsqueeze(-1)).any(-1)

    def complaint(self, count: int) -> str:
        return outside_vocabulary(count)


class TokenAccuracy(Metric):
    """The share of target tokens that are predicted; 0 where there are none.

    Predictions and targets are compared as they are: where a model predicts the next token, shift them first.
    A target outside the vocabulary counts as a wrong prediction, and is told.

    Args:
        ignore_index: a target that does not count.
        top_k: a token counts as predicted where its score is among so many highest.
    """

    torchmetrics_file = None
    is_differentiable = False
    higher_is_better = True
    hits: Hits

    def __init__(self, ignore_index: int | None = None, top_k: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        checks.optional_integer("ignore_index", ignore_index)
        checks.integer_above("top_k", top_k, 0)
        self.ignore_index = ignore_index
        self.top_k = top_k
        self.use("hits", Hits(ignore_index, top_k))

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add scores or logits ``(B, T, V)``, or tokens ``(B, T)``, and target tokens ``(B, T)``."""
        self.observe(preds, target)

    def value(self) -> Tensor:
        state = self.hits.state
        return divide(state["right"], state["seen"]).to(self.dtype)
