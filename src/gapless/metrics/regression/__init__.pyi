# The metrics of this folder, found when it is imported. `make format` writes this file.

from gapless.metrics.regression.correlation import ConcordanceCorrCoef as ConcordanceCorrCoef
from gapless.metrics.regression.correlation import CosineSimilarity as CosineSimilarity
from gapless.metrics.regression.correlation import PearsonCorrCoef as PearsonCorrCoef
from gapless.metrics.regression.divergence import JensenShannonDivergence as JensenShannonDivergence
from gapless.metrics.regression.divergence import KLDivergence as KLDivergence
from gapless.metrics.regression.ensembles import (
    ContinuousRankedProbabilityScore as ContinuousRankedProbabilityScore,
)
from gapless.metrics.regression.errors import LogCoshError as LogCoshError
from gapless.metrics.regression.errors import MeanAbsoluteError as MeanAbsoluteError
from gapless.metrics.regression.errors import MeanAbsolutePercentageError as MeanAbsolutePercentageError
from gapless.metrics.regression.errors import MeanSquaredError as MeanSquaredError
from gapless.metrics.regression.errors import MeanSquaredLogError as MeanSquaredLogError
from gapless.metrics.regression.errors import MinkowskiDistance as MinkowskiDistance
from gapless.metrics.regression.errors import (
    SymmetricMeanAbsolutePercentageError as SymmetricMeanAbsolutePercentageError,
)
from gapless.metrics.regression.errors import (
    WeightedMeanAbsolutePercentageError as WeightedMeanAbsolutePercentageError,
)
from gapless.metrics.regression.kendall import KendallRankCorrCoef as KendallRankCorrCoef
from gapless.metrics.regression.normalized import (
    NormalizedRootMeanSquaredError as NormalizedRootMeanSquaredError,
)
from gapless.metrics.regression.spearman import SpearmanCorrCoef as SpearmanCorrCoef
from gapless.metrics.regression.success import CriticalSuccessIndex as CriticalSuccessIndex
from gapless.metrics.regression.tweedie import TweedieDevianceScore as TweedieDevianceScore
from gapless.metrics.regression.variance import ExplainedVariance as ExplainedVariance
from gapless.metrics.regression.variance import R2Score as R2Score
from gapless.metrics.regression.variance import RelativeSquaredError as RelativeSquaredError
