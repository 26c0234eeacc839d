"""Metrics of texts and of language models."""

from __future__ import annotations

from gapless.metrics.rooms import metrics_of

globals().update(metrics_of("text"))
__all__ = list(metrics_of("text"))
