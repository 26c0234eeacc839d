"""Metrics of what a search found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.metrics.rooms import metrics_of

if TYPE_CHECKING:  # the names for type checkers and editors; `make format` writes them
    from gapless.metrics.retrieval.found import RetrievalFallOut as RetrievalFallOut
    from gapless.metrics.retrieval.found import RetrievalHitRate as RetrievalHitRate
    from gapless.metrics.retrieval.found import RetrievalPrecision as RetrievalPrecision
    from gapless.metrics.retrieval.found import RetrievalRecall as RetrievalRecall
    from gapless.metrics.retrieval.found import RetrievalRPrecision as RetrievalRPrecision
    from gapless.metrics.retrieval.ranked import RetrievalMAP as RetrievalMAP
    from gapless.metrics.retrieval.ranked import RetrievalMRR as RetrievalMRR
    from gapless.metrics.retrieval.ranked import RetrievalNormalizedDCG as RetrievalNormalizedDCG
else:
    globals().update(metrics_of("retrieval"))
    __all__ = list(metrics_of("retrieval"))
