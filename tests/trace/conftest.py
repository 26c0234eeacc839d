"""Real profiles, where they lie beside the repository."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "traces"


@pytest.fixture(scope="session")
def real() -> Callable[[str], Path]:
    """Return a function that finds the profile with this ending, as in ``real("c51d")``."""

    def find(ending: str) -> Path:
        paths = sorted(FOLDER.glob(f"*{ending}.json.gz"))
        if not paths:
            pytest.skip(f"no profile {ending}")
        return paths[0]

    return find


@pytest.fixture(scope="session")
def all_real() -> list[Path]:
    """All real profiles."""
    paths = sorted(FOLDER.glob("*.json.gz"))
    if not paths:
        pytest.skip("no profiles")
    return paths
