# The metrics of this folder, found when it is imported. `make format` writes this file.

from gapless.metrics.classification.areas import AUROC as AUROC
from gapless.metrics.classification.areas import AveragePrecision as AveragePrecision
from gapless.metrics.classification.areas import BinaryAUROC as BinaryAUROC
from gapless.metrics.classification.areas import BinaryAveragePrecision as BinaryAveragePrecision
from gapless.metrics.classification.areas import MulticlassAUROC as MulticlassAUROC
from gapless.metrics.classification.areas import MulticlassAveragePrecision as MulticlassAveragePrecision
from gapless.metrics.classification.areas import MultilabelAUROC as MultilabelAUROC
from gapless.metrics.classification.areas import MultilabelAveragePrecision as MultilabelAveragePrecision
from gapless.metrics.classification.calibration_error import BinaryCalibrationError as BinaryCalibrationError
from gapless.metrics.classification.calibration_error import CalibrationError as CalibrationError
from gapless.metrics.classification.calibration_error import (
    MulticlassCalibrationError as MulticlassCalibrationError,
)
from gapless.metrics.classification.cohen_kappa import BinaryCohenKappa as BinaryCohenKappa
from gapless.metrics.classification.cohen_kappa import CohenKappa as CohenKappa
from gapless.metrics.classification.cohen_kappa import MulticlassCohenKappa as MulticlassCohenKappa
from gapless.metrics.classification.confusion_matrix import BinaryConfusionMatrix as BinaryConfusionMatrix
from gapless.metrics.classification.confusion_matrix import ConfusionMatrix as ConfusionMatrix
from gapless.metrics.classification.confusion_matrix import (
    MulticlassConfusionMatrix as MulticlassConfusionMatrix,
)
from gapless.metrics.classification.confusion_matrix import (
    MultilabelConfusionMatrix as MultilabelConfusionMatrix,
)
from gapless.metrics.classification.exact_match import ExactMatch as ExactMatch
from gapless.metrics.classification.exact_match import MulticlassExactMatch as MulticlassExactMatch
from gapless.metrics.classification.exact_match import MultilabelExactMatch as MultilabelExactMatch
from gapless.metrics.classification.f_beta import BinaryF1Score as BinaryF1Score
from gapless.metrics.classification.f_beta import BinaryFBetaScore as BinaryFBetaScore
from gapless.metrics.classification.f_beta import F1Score as F1Score
from gapless.metrics.classification.f_beta import FBetaScore as FBetaScore
from gapless.metrics.classification.f_beta import MulticlassF1Score as MulticlassF1Score
from gapless.metrics.classification.f_beta import MulticlassFBetaScore as MulticlassFBetaScore
from gapless.metrics.classification.f_beta import MultilabelF1Score as MultilabelF1Score
from gapless.metrics.classification.f_beta import MultilabelFBetaScore as MultilabelFBetaScore
from gapless.metrics.classification.hinge import BinaryHingeLoss as BinaryHingeLoss
from gapless.metrics.classification.hinge import HingeLoss as HingeLoss
from gapless.metrics.classification.hinge import MulticlassHingeLoss as MulticlassHingeLoss
from gapless.metrics.classification.jaccard import BinaryJaccardIndex as BinaryJaccardIndex
from gapless.metrics.classification.jaccard import JaccardIndex as JaccardIndex
from gapless.metrics.classification.jaccard import MulticlassJaccardIndex as MulticlassJaccardIndex
from gapless.metrics.classification.jaccard import MultilabelJaccardIndex as MultilabelJaccardIndex
from gapless.metrics.classification.matthews import BinaryMatthewsCorrCoef as BinaryMatthewsCorrCoef
from gapless.metrics.classification.matthews import MatthewsCorrCoef as MatthewsCorrCoef
from gapless.metrics.classification.matthews import MulticlassMatthewsCorrCoef as MulticlassMatthewsCorrCoef
from gapless.metrics.classification.matthews import MultilabelMatthewsCorrCoef as MultilabelMatthewsCorrCoef
from gapless.metrics.classification.operating import (
    BinaryPrecisionAtFixedRecall as BinaryPrecisionAtFixedRecall,
)
from gapless.metrics.classification.operating import (
    BinaryRecallAtFixedPrecision as BinaryRecallAtFixedPrecision,
)
from gapless.metrics.classification.operating import (
    BinarySensitivityAtSpecificity as BinarySensitivityAtSpecificity,
)
from gapless.metrics.classification.operating import (
    BinarySpecificityAtSensitivity as BinarySpecificityAtSensitivity,
)
from gapless.metrics.classification.operating import (
    MulticlassPrecisionAtFixedRecall as MulticlassPrecisionAtFixedRecall,
)
from gapless.metrics.classification.operating import (
    MulticlassRecallAtFixedPrecision as MulticlassRecallAtFixedPrecision,
)
from gapless.metrics.classification.operating import (
    MulticlassSensitivityAtSpecificity as MulticlassSensitivityAtSpecificity,
)
from gapless.metrics.classification.operating import (
    MulticlassSpecificityAtSensitivity as MulticlassSpecificityAtSensitivity,
)
from gapless.metrics.classification.operating import (
    MultilabelPrecisionAtFixedRecall as MultilabelPrecisionAtFixedRecall,
)
from gapless.metrics.classification.operating import (
    MultilabelRecallAtFixedPrecision as MultilabelRecallAtFixedPrecision,
)
from gapless.metrics.classification.operating import (
    MultilabelSensitivityAtSpecificity as MultilabelSensitivityAtSpecificity,
)
from gapless.metrics.classification.operating import (
    MultilabelSpecificityAtSensitivity as MultilabelSpecificityAtSensitivity,
)
from gapless.metrics.classification.operating import PrecisionAtFixedRecall as PrecisionAtFixedRecall
from gapless.metrics.classification.operating import RecallAtFixedPrecision as RecallAtFixedPrecision
from gapless.metrics.classification.operating import SensitivityAtSpecificity as SensitivityAtSpecificity
from gapless.metrics.classification.operating import SpecificityAtSensitivity as SpecificityAtSensitivity
from gapless.metrics.classification.ranking import MultilabelCoverageError as MultilabelCoverageError
from gapless.metrics.classification.ranking import (
    MultilabelRankingAveragePrecision as MultilabelRankingAveragePrecision,
)
from gapless.metrics.classification.ranking import MultilabelRankingLoss as MultilabelRankingLoss
from gapless.metrics.classification.rate_curves import EER as EER
from gapless.metrics.classification.rate_curves import ROC as ROC
from gapless.metrics.classification.rate_curves import BinaryEER as BinaryEER
from gapless.metrics.classification.rate_curves import (
    BinaryPrecisionRecallCurve as BinaryPrecisionRecallCurve,
)
from gapless.metrics.classification.rate_curves import BinaryROC as BinaryROC
from gapless.metrics.classification.rate_curves import MulticlassEER as MulticlassEER
from gapless.metrics.classification.rate_curves import (
    MulticlassPrecisionRecallCurve as MulticlassPrecisionRecallCurve,
)
from gapless.metrics.classification.rate_curves import MulticlassROC as MulticlassROC
from gapless.metrics.classification.rate_curves import MultilabelEER as MultilabelEER
from gapless.metrics.classification.rate_curves import (
    MultilabelPrecisionRecallCurve as MultilabelPrecisionRecallCurve,
)
from gapless.metrics.classification.rate_curves import MultilabelROC as MultilabelROC
from gapless.metrics.classification.rate_curves import PrecisionRecallCurve as PrecisionRecallCurve
from gapless.metrics.classification.ratios import Accuracy as Accuracy
from gapless.metrics.classification.ratios import BinaryAccuracy as BinaryAccuracy
from gapless.metrics.classification.ratios import BinaryHammingDistance as BinaryHammingDistance
from gapless.metrics.classification.ratios import (
    BinaryNegativePredictiveValue as BinaryNegativePredictiveValue,
)
from gapless.metrics.classification.ratios import BinaryPrecision as BinaryPrecision
from gapless.metrics.classification.ratios import BinaryRecall as BinaryRecall
from gapless.metrics.classification.ratios import BinarySpecificity as BinarySpecificity
from gapless.metrics.classification.ratios import HammingDistance as HammingDistance
from gapless.metrics.classification.ratios import MulticlassAccuracy as MulticlassAccuracy
from gapless.metrics.classification.ratios import MulticlassHammingDistance as MulticlassHammingDistance
from gapless.metrics.classification.ratios import (
    MulticlassNegativePredictiveValue as MulticlassNegativePredictiveValue,
)
from gapless.metrics.classification.ratios import MulticlassPrecision as MulticlassPrecision
from gapless.metrics.classification.ratios import MulticlassRecall as MulticlassRecall
from gapless.metrics.classification.ratios import MulticlassSpecificity as MulticlassSpecificity
from gapless.metrics.classification.ratios import MultilabelAccuracy as MultilabelAccuracy
from gapless.metrics.classification.ratios import MultilabelHammingDistance as MultilabelHammingDistance
from gapless.metrics.classification.ratios import (
    MultilabelNegativePredictiveValue as MultilabelNegativePredictiveValue,
)
from gapless.metrics.classification.ratios import MultilabelPrecision as MultilabelPrecision
from gapless.metrics.classification.ratios import MultilabelRecall as MultilabelRecall
from gapless.metrics.classification.ratios import MultilabelSpecificity as MultilabelSpecificity
from gapless.metrics.classification.ratios import NegativePredictiveValue as NegativePredictiveValue
from gapless.metrics.classification.ratios import Precision as Precision
from gapless.metrics.classification.ratios import Recall as Recall
from gapless.metrics.classification.ratios import Specificity as Specificity
from gapless.metrics.classification.stat_scores import BinaryStatScores as BinaryStatScores
from gapless.metrics.classification.stat_scores import MulticlassStatScores as MulticlassStatScores
from gapless.metrics.classification.stat_scores import MultilabelStatScores as MultilabelStatScores
from gapless.metrics.classification.stat_scores import StatScores as StatScores
