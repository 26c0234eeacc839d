# The metrics of this folder, found when it is imported. `make format` writes this file.

from gapless.metrics.retrieval.found import RetrievalFallOut as RetrievalFallOut
from gapless.metrics.retrieval.found import RetrievalHitRate as RetrievalHitRate
from gapless.metrics.retrieval.found import RetrievalPrecision as RetrievalPrecision
from gapless.metrics.retrieval.found import RetrievalRecall as RetrievalRecall
from gapless.metrics.retrieval.found import RetrievalRPrecision as RetrievalRPrecision
from gapless.metrics.retrieval.ranked import RetrievalMAP as RetrievalMAP
from gapless.metrics.retrieval.ranked import RetrievalMRR as RetrievalMRR
from gapless.metrics.retrieval.ranked import RetrievalNormalizedDCG as RetrievalNormalizedDCG
