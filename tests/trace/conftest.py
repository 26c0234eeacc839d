"""Real profiles, where they lie beside the repository."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "traces"


@pytest.fixture(scope="session")
def real() -> Callable[[str], Path]:
    """``real("c51d")``: the profile whose name ends so."""

    def find(ending: str) -> Path:
        found = sorted(FOLDER.glob(f"*{ending}.json.gz"))
        if not found:
            pytest.skip(f"no profile {ending}")
        return found[0]

    return find


@pytest.fixture(scope="session")
def all_real() -> list[Path]:
    """All of them."""
    found = sorted(FOLDER.glob("*.json.gz"))
    if not found:
        pytest.skip("no profiles")
    return found
