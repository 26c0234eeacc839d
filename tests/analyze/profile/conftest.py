"""Public traces, where they lie beside the project."""

from __future__ import annotations

import csv
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from gapless.trace.read import read
from gapless.trace.timeline import Timeline

FOLDER = Path(__file__).resolve().parents[4] / "shared" / "traces"
REFERENCE = Path(__file__).with_name("tensorboard.tsv")


@cache
def _load(name: str) -> Timeline:
    return read(FOLDER / f"{name}.json.gz")


@pytest.fixture(scope="session")
def public_trace() -> Callable[[str], Timeline]:
    """``public_trace(name)`` is the trace of that name; the test is skipped where the folder is absent."""
    if not FOLDER.is_dir():
        pytest.skip("the folder of public traces is absent")
    return _load


@pytest.fixture(scope="session")
def tensorboard() -> list[dict[str, str]]:
    """What the TensorBoard plugin made of the public traces; the file says how the values were obtained."""
    lines = [line for line in REFERENCE.read_text().splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines, delimiter="\t"))
