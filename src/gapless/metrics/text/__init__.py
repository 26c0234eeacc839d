"""Metrics of language models."""

from __future__ import annotations

from gapless.metrics.text.perplexity import Perplexity
from gapless.metrics.text.token_accuracy import TokenAccuracy

__all__ = ["Perplexity", "TokenAccuracy"]
