"""Metrics of language models."""

from __future__ import annotations

from gapless.metrics.text.perplexity import Perplexity

__all__ = ["Perplexity"]
