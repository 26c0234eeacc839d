"""Whether a run fits, in numbers alone: as its report says, and within the fraction of a process."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.memory.fits import fits
from gapless.memory.recorder import Recorder
from gapless.memory.report import report
from gapless.memory.sizes import MIB
from gapless.memory.trials import EXPANDABLE, TrialConditions, attempt
from gapless.model.memory import MemoryRun


def asking(*sizes: int, settings: str = "", limit: int = 1024 * MIB) -> MemoryRun:
    """A run that asks for so many MiB, all at once, and then gives them back."""
    memory = Recorder()
    for number, size in enumerate(sizes):
        memory.alloc(number, size * MIB)
    for number in range(len(sizes)):
        memory.free(number)
    return memory.run(limit=limit, total_memory=limit, gpu="Tesla T4", settings=settings)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=12))
def test_fits_agrees_with_the_report(sizes: list[int]) -> None:
    run = asking(*sizes)
    fit, memory_report = fits(run), report(run)
    assert fit.fits == (memory_report.lack is None)
    assert fit.needs == (
        memory_report.lack.needs if memory_report.lack else memory_report.baseline.peak_reserved
    )
    assert fit.has == 1024 * MIB
    assert fit.fits == (fit.needs <= fit.has)


def test_a_fraction_is_all_that_a_process_may_have() -> None:
    run = asking(300, 300, settings="per_process_memory_fraction:0.5")
    fit = fits(run)
    assert (fit.fits, fit.has, fit.needs) == (False, 512 * MIB, 600 * MIB)
    assert fits(run, TrialConditions(2048 * MIB, 2048 * MIB)).fits


@pytest.mark.parametrize(
    "settings", [EXPANDABLE, "per_process_memory_fraction:0.98", "garbage_collection_threshold:0.8"]
)
def test_no_setting_lifts_the_fraction_that_a_call_has_set(settings: str) -> None:
    run = asking(300, 300, settings="per_process_memory_fraction:0.5")
    outcome = attempt(run, settings, TrialConditions()).outcome
    assert outcome is not None
    assert outcome.shortage is not None
