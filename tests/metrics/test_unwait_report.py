"""What `unwait` says, and the versions its replacements were written for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torchmetrics
from metrics import own_metrics
from metrics.unwaiting import QUIET
from torch import Tensor
from torchmetrics import MetricCollection, segmentation
from torchmetrics import classification as tc
from torchmetrics.aggregation import MeanMetric

from gapless.metrics.torchmetrics import _classes, _relink, unwait
from gapless.metrics.torchmetrics._registry import (
    REPLACEMENTS,
    ReplacementTable,
    digest_of,
    fitting_replacements,
    is_needed,
    original_of,
)

pytestmark = QUIET


def test_every_replacement_names_the_text_it_replaces() -> None:
    if not torchmetrics.__version__.startswith("1.9."):
        pytest.skip("the texts are those of 1.9")
    assert fitting_replacements().unmatched_names == ()
    assert len(fitting_replacements().by_original) == sum(
        is_needed(replacement, original_of(replacement)) for replacement in REPLACEMENTS
    )


def test_a_function_with_another_text_is_not_replaced() -> None:
    def other(x: Tensor, minlength: int | None = None) -> Tensor:
        return x

    originals = [original_of(replacement) for replacement in REPLACEMENTS]
    assert digest_of(other) not in {
        digest_of(replacement) for replacement in originals if replacement is not None
    }


def test_the_report_counts_what_was_counted() -> None:
    [change] = unwait(MeanMetric())
    assert change.waits is not None
    assert (change.waits.update, change.waits.update_unwaited, change.waits.checks) == (2, 0, 1)
    lines = str(change).splitlines()
    assert lines[0].split() == ["syncs", "per", "update", "compute"]
    assert lines[1].split() == ["MeanMetric", "2", "→", "0", "0", "→", "0"]
    assert "  sync: one collective" in lines


def test_the_report_fits_a_terminal_and_says_each_thing_once() -> None:
    metrics = MetricCollection(
        {
            "accuracy": tc.MulticlassAccuracy(5),
            "f1": tc.MulticlassF1Score(5),
            "auroc": tc.MulticlassAUROC(5),
            "a_name_that_is_rather_long_for_the_first_column": tc.MulticlassCalibrationError(5),
        }
    )
    lines = str(unwait({"model.metrics": metrics, "loss": MeanMetric()})).splitlines()
    assert max(map(len, lines)) <= 80
    texts = [line for line in lines if line.startswith("  ") and not line.startswith("    ")]
    assert len(texts) == len(set(texts))
    row = next(line for line in lines if line.startswith("model.metrics.accuracy"))
    assert row.split()[-6:] == ["2", "→", "0", "0", "→", "0"]


def test_remaining_waits_are_reported_with_their_line() -> None:
    text = " ".join(str(unwait(segmentation.HausdorffDistance(num_classes=3))).split())
    assert "update: 228 waits, most at torchmetrics/functional/segmentation/utils.py:" in text
    assert "if not torch.all(x.bool() == x):" in text


def test_lines_of_the_users_own_that_wait_are_named() -> None:
    source = Path(own_metrics.__file__).read_text().splitlines()
    line = next(i for i, text in enumerate(source, 1) if "isnan(value).any()" in text)
    text = " ".join(str(unwait(own_metrics.Careful())).split())
    assert f"own_metrics.py:{line} if torch.isnan(value).any():" in text
    assert "return" not in text


def test_counts_of_another_version_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchmetrics, "__version__", "1.6.3")
    [change] = unwait(MeanMetric())
    assert change.waits is None
    assert str(change).splitlines()[0] == "MeanMetric"


def test_a_text_that_is_another_is_named_where_it_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "_multiclass_stat_scores_update"
    [replacement] = [replacement for replacement in REPLACEMENTS if replacement.name == name]
    original = original_of(replacement)
    assert original is not None
    strange = ReplacementTable({}, (f"{replacement.module}.{name}",), frozenset({original}))
    monkeypatch.setattr(_relink, "fitting_replacements", lambda: strange)
    monkeypatch.setattr(_classes, "RELINKER", _relink.Relinker())
    accuracy, mean = unwait(tc.MulticlassAccuracy(3)), unwait(MeanMetric())
    assert f"has different code for it: {name}" in " ".join(str(accuracy).split())
    assert name not in str(mean)
