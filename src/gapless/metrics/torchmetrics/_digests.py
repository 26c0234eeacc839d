"""The source texts of TorchMetrics' functions that the replacements stand for, by digest.

The first is usually the text of version 1.9, the others are those of versions 1.4 to 1.8 that do the same. A
function whose text is not among these does something else than what was replaced: it is left as it is.
"""

from __future__ import annotations

DIGESTS: dict[str, dict[str, tuple[str, ...]]] = {
    "torchmetrics.functional.classification.auroc": {
        "_binary_auroc_compute": ("b3f60d0482f1", "c969b1c413cd"),
        "_multiclass_auroc_compute": ("4a1f0ee83030", "8fc73ae0a949"),
        "_multilabel_auroc_compute": ("b21f6a8dd376", "c75ddb547e38"),
        "_reduce_auroc": ("bf40248dd1fe",),
    },
    "torchmetrics.functional.classification.average_precision": {
        "_binary_average_precision_compute": ("178eba2848cd",),
        "_multiclass_average_precision_compute": ("17115a9058f9", "6064ac984692"),
        "_multilabel_average_precision_compute": ("2603c40cac11", "2e61e5409831"),
        "_reduce_average_precision": ("ca45186e1bad", "78f668e6887a"),
    },
    "torchmetrics.functional.classification.confusion_matrix": {
        "_binary_confusion_matrix_format": ("0ad0aa989bae", "1193b0febd27"),
        "_binary_confusion_matrix_tensor_validation": ("e33c78c7905e",),
        "_binary_confusion_matrix_update": ("0140e8241ca4",),
        "_multiclass_confusion_matrix_format": ("e4bd464fb83e", "d5c49a43fbec"),
        "_multiclass_confusion_matrix_tensor_validation": ("9952c9fc157a",),
        "_multiclass_confusion_matrix_update": ("f069dd535a93",),
        "_multilabel_confusion_matrix_tensor_validation": ("c51e4e388180",),
        "_multilabel_confusion_matrix_update": ("394e68b2cc4a",),
    },
    "torchmetrics.functional.classification.eer": {"_binary_eer_compute": ("c8821182af30",)},
    "torchmetrics.functional.classification.group_fairness": {"_groups_validation": ("aa9831b408bc",)},
    "torchmetrics.functional.classification.hinge": {
        "_binary_hinge_loss_update": ("ae2c903724bc", "e7f03ce8adec"),
        "_multiclass_hinge_loss_update": ("23b65f360083", "7cf3b1781267"),
    },
    "torchmetrics.functional.classification.logauc": {
        "_binary_logauc_compute": ("7b541c833b17", "6bd1522cffea"),
        "_reduce_logauc": ("d43497b46f7f",),
    },
    "torchmetrics.functional.classification.matthews_corrcoef": {
        "_matthews_corrcoef_reduce": ("7d5bc1985b88",)
    },
    "torchmetrics.functional.classification.precision_fixed_recall": {
        "_precision_at_recall": ("752f8b0e57b5", "040bd61530e3", "6d50e74656d7")
    },
    "torchmetrics.functional.classification.precision_recall_curve": {
        "_binary_precision_recall_curve_format": ("f840b5821923", "215cfbdd6f86", "c113fcb5d105"),
        "_binary_precision_recall_curve_tensor_validation": ("61e17314d116",),
        "_binary_precision_recall_curve_update": ("785721a3dcb1", "37654a972e81"),
        "_multiclass_precision_recall_curve_format": ("1957e36778df", "9bd48c49785f"),
        "_multiclass_precision_recall_curve_tensor_validation": ("ed0755831e91",),
        "_multiclass_precision_recall_curve_update": ("069dc51567bc", "6cab2ac87cf5"),
        "_multilabel_precision_recall_curve_update": ("e4564889022b", "1a4f27e1316a"),
    },
    "torchmetrics.functional.classification.ranking": {
        "_multilabel_coverage_error_update": ("6bff9236363a", "6cfee4b53545"),
        "_multilabel_ranking_average_precision_update": ("0aaba8525453", "cf60d393bb44"),
        "_multilabel_ranking_loss_update": ("0082bfcb3f47", "e54b9dced3b5"),
    },
    "torchmetrics.functional.classification.recall_fixed_precision": {
        "_recall_at_precision": ("3e74c84f2d82", "6d375c250436", "54200f91130e")
    },
    "torchmetrics.functional.classification.sensitivity_specificity": {
        "_sensitivity_at_specificity": ("b0006c2d2013", "c1c373c1a78d")
    },
    "torchmetrics.functional.classification.specificity_sensitivity": {
        "_specificity_at_sensitivity": ("5cfc7ba41e72", "7f74cdf9c58a")
    },
    "torchmetrics.functional.classification.stat_scores": {
        "_binary_stat_scores_tensor_validation": ("7c186309627f",),
        "_multiclass_stat_scores_tensor_validation": ("14a954c3f652", "ced8570169e0"),
        "_multiclass_stat_scores_update": ("6a4dd4865f3a", "310fcf25c8cc"),
        "_multilabel_stat_scores_tensor_validation": ("c3ffcee771ae",),
    },
    "torchmetrics.functional.regression.explained_variance": {
        "_explained_variance_compute": ("c1a42079a927",)
    },
    "torchmetrics.functional.regression.pearson": {"_pearson_corrcoef_compute": ("4b45f1b3db15",)},
    "torchmetrics.functional.regression.r2": {"_r2_score_compute": ("c67aeab8136c", "e0ce437f1aab")},
    "torchmetrics.functional.regression.spearman": {"_rank_data": ("a51c934498a5", "64f22f5e78e6")},
    "torchmetrics.functional.segmentation.generalized_dice": {"_generalized_dice_update": ("4c4f84b9fa2f",)},
    "torchmetrics.functional.text.perplexity": {"_perplexity_update": ("65b432fe1743", "281cd9674ee6")},
    "torchmetrics.utilities.checks": {
        "_check_retrieval_target_and_prediction_types": ("5b3943155530", "c0ba1ba5d0e6")
    },
    "torchmetrics.utilities.compute": {
        "_safe_divide": ("56b613b73dfd", "9502c49c38cb", "728c1dff35fe", "6394eab944ea")
    },
    "torchmetrics.utilities.data": {"_bincount": ("adc129aff3da", "edbdc064518c")},
}

NO_NEED: dict[str, dict[str, tuple[str, ...]]] = {
    "torchmetrics.utilities.compute": {"_safe_divide": ("62a974cd3ee2",)}
}
"""Texts that do not wait, of functions that wait in older versions."""
