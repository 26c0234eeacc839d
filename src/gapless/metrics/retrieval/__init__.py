"""Metrics of documents retrieved for queries."""

from __future__ import annotations

from gapless.metrics.rooms import metrics_of

globals().update(metrics_of("retrieval"))
__all__ = list(metrics_of("retrieval"))
