"""The source texts of TorchMetrics' functions that the replacements stand for, by digest.

A function whose text is not among these does something else than what was replaced: it is left as it is.
"""

from __future__ import annotations

DIGESTS: dict[str, dict[str, tuple[str, ...]]] = {
    "torchmetrics.functional.classification.auroc": {
        "_reduce_auroc": ("bf40248dd1fe",),
    },
    "torchmetrics.functional.classification.average_precision": {
        "_reduce_average_precision": ("ca45186e1bad",),
    },
    "torchmetrics.functional.classification.confusion_matrix": {
        "_binary_confusion_matrix_format": ("0ad0aa989bae",),
        "_binary_confusion_matrix_tensor_validation": ("e33c78c7905e",),
        "_binary_confusion_matrix_update": ("0140e8241ca4",),
        "_multiclass_confusion_matrix_format": ("e4bd464fb83e",),
        "_multiclass_confusion_matrix_tensor_validation": ("9952c9fc157a",),
        "_multiclass_confusion_matrix_update": ("f069dd535a93",),
        "_multilabel_confusion_matrix_tensor_validation": ("c51e4e388180",),
        "_multilabel_confusion_matrix_update": ("394e68b2cc4a",),
    },
    "torchmetrics.functional.classification.group_fairness": {
        "_groups_validation": ("aa9831b408bc",),
    },
    "torchmetrics.functional.classification.hinge": {
        "_binary_hinge_loss_update": ("ae2c903724bc",),
        "_multiclass_hinge_loss_update": ("23b65f360083",),
    },
    "torchmetrics.functional.classification.matthews_corrcoef": {
        "_matthews_corrcoef_reduce": ("7d5bc1985b88",),
    },
    "torchmetrics.functional.classification.precision_recall_curve": {
        "_binary_precision_recall_curve_format": ("f840b5821923",),
        "_binary_precision_recall_curve_tensor_validation": ("61e17314d116",),
        "_binary_precision_recall_curve_update": ("785721a3dcb1",),
        "_multiclass_precision_recall_curve_format": ("1957e36778df",),
        "_multiclass_precision_recall_curve_tensor_validation": ("ed0755831e91",),
        "_multiclass_precision_recall_curve_update": ("069dc51567bc",),
        "_multilabel_precision_recall_curve_update": ("e4564889022b",),
    },
    "torchmetrics.functional.classification.ranking": {
        "_multilabel_coverage_error_update": ("6bff9236363a",),
        "_multilabel_ranking_loss_update": ("0082bfcb3f47",),
    },
    "torchmetrics.functional.classification.stat_scores": {
        "_binary_stat_scores_tensor_validation": ("7c186309627f",),
        "_multiclass_stat_scores_tensor_validation": ("14a954c3f652",),
        "_multiclass_stat_scores_update": ("6a4dd4865f3a",),
        "_multilabel_stat_scores_tensor_validation": ("c3ffcee771ae",),
    },
    "torchmetrics.functional.regression.explained_variance": {
        "_explained_variance_compute": ("c1a42079a927",),
    },
    "torchmetrics.functional.regression.pearson": {
        "_pearson_corrcoef_compute": ("4b45f1b3db15",),
    },
    "torchmetrics.functional.regression.r2": {
        "_r2_score_compute": ("c67aeab8136c",),
    },
    "torchmetrics.functional.text.perplexity": {
        "_perplexity_update": ("65b432fe1743",),
    },
    "torchmetrics.utilities.checks": {
        "_check_retrieval_target_and_prediction_types": ("5b3943155530",),
    },
    "torchmetrics.utilities.data": {
        "_bincount": ("adc129aff3da",),
    },
}
