"""Real profiles, where they lie beside the repository."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gapless.trace.read import read
from gapless.trace.timeline import Timeline

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "traces"


@pytest.fixture(scope="session")
def real() -> Callable[[str], Timeline]:
    """``real("c51d")``: the profile whose name ends so."""

    def find(ending: str) -> Timeline:
        paths = sorted(FOLDER.glob(f"*{ending}.json.gz"))
        if not paths:
            pytest.skip(f"no profile {ending}")
        return read(paths[0])

    return find
