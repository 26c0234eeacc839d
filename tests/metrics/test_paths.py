"""TorchMetrics' paths of modules beneath `gapless.metrics`."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import warnings

import pytest

import gapless.metrics
import gapless.metrics.functional
from gapless.metrics.paths import torchmetrics_paths

torchmetrics = pytest.importorskip("torchmetrics")


def theirs() -> list[tuple[str, list[str]]]:
    """(module without its first word, the names defined there that exist here too)."""
    modules = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for info in pkgutil.walk_packages(torchmetrics.__path__, "torchmetrics."):
            if "._" in info.name:
                continue
            try:
                module = importlib.import_module(info.name)
            except Exception:  # needs a library that is not there
                continue
            names = [
                name
                for name, value in vars(module).items()
                if not name.startswith("_")
                and getattr(value, "__module__", "") == info.name
                and hasattr(gapless.metrics if isinstance(value, type) else gapless.metrics.functional, name)
            ]
            if names:
                modules.append((info.name.removeprefix("torchmetrics."), names))
    return modules


def test_every_name_is_where_torchmetrics_has_it():
    for path, names in theirs():
        module = importlib.import_module(f"gapless.metrics.{path}")
        for name in names:
            value = getattr(module, name)
            home = gapless.metrics if isinstance(value, type) else gapless.metrics.functional
            assert value is getattr(home, name), f"{path}.{name}"


def test_every_path_is_one_of_torchmetrics():
    walked = pkgutil.walk_packages(torchmetrics.__path__, "torchmetrics.", onerror=print)
    their_paths = {info.name for info in walked}
    strange = {path.replace("gapless.metrics", "torchmetrics") for path in torchmetrics_paths()} - their_paths
    assert not strange, (
        f"TorchMetrics has no {sorted(strange)}: the metric's class says with `torchmetrics_file` in which "
        "module TorchMetrics has it, or None"
    )


def test_other_paths_and_names_are_missing_as_ever():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("gapless.metrics.functional.classification.nothing")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("gapless.metrics.nothing")
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        from gapless.metrics.functional.classification.accuracy import nothing  # noqa: F401
    assert "gapless.metrics.functional.classification.nothing" not in sys.modules


def test_the_classes_of_collections_and_compositions():
    from gapless.metrics.collections import MetricCollection

    from gapless.metrics.metric import CompositionalMetric

    assert MetricCollection is gapless.metrics.MetricCollection
    assert isinstance(gapless.metrics.MeanMetric() + 1, CompositionalMetric)
