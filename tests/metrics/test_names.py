"""Every name of TorchMetrics is here, or docs/metrics.md says that it is not."""

from __future__ import annotations

import importlib
import re
import warnings
from pathlib import Path

import pytest

import gapless.metrics
from gapless.metrics.rooms import ROOMS

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| (\w+) \| .* \| (.*) \|$", re.MULTILINE)
TABLE = PAGE.read_text(encoding="utf-8").split("## What is included", 1)[1].split("\n## ", 1)[0]
LACKING = {room: re.findall(r"`(\w+)`", cell) for room, cell in ROW.findall(TABLE)}
COMPLETE = ("wrappers", "aggregation")
"""Rooms of which the page says that all is there: `FeatureShare` is of networks."""


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in (*COMPLETE, "image")])
def test_missing_metrics_are_named(room: str):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = importlib.import_module(f"torchmetrics.{room}").__all__
    named = set(LACKING[room])
    missing = {name for name in theirs if not hasattr(gapless.metrics, name)}
    # A name for several tasks stands for its forms.
    forms_of_named = {
        name for name in missing if re.sub("^(Multiclass|Multilabel|Binary)", "", name) in named
    }
    assert not missing - forms_of_named - named, "add them to the table of docs/metrics.md"
    assert not {name for name in named if hasattr(gapless.metrics, name)}, "they are here"
