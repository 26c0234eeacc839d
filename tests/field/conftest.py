"""The field tests' own marker."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "framework: runs one of the large frameworks; leave out with -m 'not framework'"
    )
