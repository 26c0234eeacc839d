"""Metrics are found by themselves, and type checkers know their names."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import gapless.metrics as metrics
from gapless.metrics.rooms import ROOMS, metrics_of


@pytest.mark.parametrize("room", ROOMS)
def test_type_checkers_know_every_metric(room: str):
    file = Path(getattr(metrics, room).__file__)
    told = {
        (node.module, alias.name)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == alias.asname
    }
    there = {(metric.__module__, name) for name, metric in metrics_of(room).items()}
    place = f"src/gapless/metrics/{room}/__init__.py, below `if TYPE_CHECKING`, then `make format`:"
    wrong = [f"add to {place}\n    {line(*one)}" for one in sorted(there - told)]
    wrong += [f"take out of {place}\n    {line(*one)}" for one in sorted(told - there)]
    assert not wrong, "\n".join(wrong)


def line(module: str, name: str) -> str:
    return f"from {module} import {name} as {name}"


def test_what_metrics_have_in_common_is_none():
    from gapless.metrics.regression.correlation import Correlation

    assert "Correlation" not in metrics_of("regression")
    assert issubclass(metrics.PearsonCorrCoef, Correlation)
    assert not hasattr(metrics.regression, "Correlation")


def test_no_name_is_in_two_rooms():
    names = [name for room in ROOMS for name in metrics_of(room)]
    assert len(names) == len(set(names))
    assert set(names) < set(metrics.__all__)
