"""TorchMetrics' paths of modules, for code that imports from deep inside of it.

``from torchmetrics.functional.classification.accuracy import binary_accuracy`` goes on working when the first
word is changed to ``gapless.metrics``, although the names live elsewhere here: such a module is made when it
is asked for, and has every public name of `gapless.metrics`, or of `gapless.metrics.functional`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

HERE = "gapless.metrics"

_FILES = {
    "": "collections",
    "classification": (
        "accuracy auroc average_precision calibration_error cohen_kappa confusion_matrix eer exact_match "
        "f_beta hamming hinge jaccard matthews_corrcoef negative_predictive_value precision_fixed_recall "
        "precision_recall precision_recall_curve ranking recall_fixed_precision roc sensitivity_specificity "
        "specificity specificity_sensitivity stat_scores"
    ),
    "regression": (
        "concordance cosine_similarity explained_variance log_cosh log_mse mae mape minkowski mse nrmse "
        "pearson r2 rse spearman symmetric_mape wmape"
    ),
    "segmentation": "dice mean_iou",
    "text": "perplexity",
    "wrappers": (
        "bootstrapping classwise feature_share minmax multioutput multitask running tracker transformations"
    ),
}
_LATER = {"aggregation": "RunningMean RunningSum", "metric": "CompositionalMetric"}
"""Names that TorchMetrics has in these files and that modules define here which import them."""
_WITH_FUNCTIONS = ("classification", "regression", "segmentation", "text")
_FOLDERS = tuple(f"functional.{folder}" for folder in _WITH_FUNCTIONS)


def _known() -> frozenset[str]:
    files = {f"{folder}.{file}".lstrip(".") for folder, names in _FILES.items() for file in names.split()}
    functions = {f"functional.{file}" for file in files if file.startswith(_WITH_FUNCTIONS)}
    return frozenset(f"{HERE}.{path}" for path in (*files, *functions, *_FOLDERS))


PATHS = _known()


class _Paths(MetaPathFinder, Loader):
    """Finds what has no file of its own; asked last, so that a file goes first."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in PATHS:
            return None
        return ModuleSpec(fullname, self, is_package=fullname.removeprefix(f"{HERE}.") in _FOLDERS)

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        functional = module.__name__.startswith(f"{HERE}.functional.")
        home = importlib.import_module(f"{HERE}.functional" if functional else HERE)

        def __getattr__(name: str) -> Any:  # noqa: N807
            if name.startswith("_") or not hasattr(home, name):
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            return getattr(home, name)

        module.__getattr__ = __getattr__  # type: ignore[method-assign]


def install() -> None:
    """Let these paths be imported, with every name that TorchMetrics has there."""
    for file, names in _LATER.items():
        for name in names.split():
            setattr(sys.modules[f"{HERE}.{file}"], name, getattr(sys.modules[HERE], name))
    if not any(isinstance(finder, _Paths) for finder in sys.meta_path):
        sys.meta_path.append(_Paths())
