"""Public traces, where they lie beside the project."""

from __future__ import annotations

import csv
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from gapless.analyze.profile.building import build_profile
from gapless.model import Profile
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


NAMES = sorted(path.name.removesuffix(".json.gz") for path in FOLDER.glob("*.json.gz"))


@cache
def _profile(name: str) -> Profile | None:
    timeline = _load(name)
    return build_profile(timeline) if len(timeline.work) else None


@pytest.fixture(params=NAMES)
def real_profile(request: pytest.FixtureRequest) -> Profile:
    """The profile of each public trace with work of a device, one after the other."""
    profile = _profile(request.param)
    if profile is None:
        pytest.skip("a profile of the CPU alone")
    return profile


@pytest.fixture(scope="session")
def public_profile() -> Callable[[str], Profile]:
    """``public_profile(end)`` is the profile of the public trace whose name ends so."""

    def get(end: str) -> Profile:
        matching = [name for name in NAMES if name.endswith(end)]
        if not matching:
            pytest.skip("the folder of public traces is absent")
        profile = _profile(matching[0])
        assert profile is not None
        return profile

    return get
