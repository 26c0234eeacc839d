"""The examples in docstrings do what they show."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"
WITH_EXAMPLES = sorted(
    path.relative_to(SOURCE).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
    if re.search(r"^\s*>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)
)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_show_what_happens(name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(name))
    assert outcome.attempted
    assert not outcome.failed
