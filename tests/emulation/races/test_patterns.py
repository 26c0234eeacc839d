"""Wrong versions are found, right ones are not."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from emulation.races.patterns import DEVICES, PATTERNS, RANKS, __file__, reports, threads

import gapless
from gapless.analyze.findings.race_findings import findings
from gapless.emulation.races import thread_order


def met(name: str) -> list[Any]:
    """The findings of one pattern."""
    world = 2 if name in RANKS else None
    try:
        with gapless.emulate(world_size=world, devices=2 if name in DEVICES else None) as emulation:
            PATTERNS[name]()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return findings(emulation.session.races)


@pytest.mark.parametrize("module", [threads, reports], ids=["threads", "reports"])
def test_ten_threads_and_more_are_rebuilt(module: Any) -> None:
    assert len(set(module.THREADS.values())) >= 10
    assert set(module.THREADS) == {
        name
        for name, function in PATTERNS.items()
        if "_wrong_" in name and _home(function) == module.__name__
    }


def _home(function: Any) -> str:
    """The module that a pattern stands in: that of the function that it calls."""
    own = getattr(function, "func", None) or inspect.unwrap(function)
    return str(own.__module__)


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_pattern(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "_wrong_" in name:  # a busy machine may be slow to run the other thread
        for limit, value in {"MAX_HOLD_SECONDS": 1.0, "LOOKS_UNCHANGED": 50, "_MAX_TOTAL_HOLD": 60.0}.items():
            monkeypatch.setattr(thread_order, limit, value)
    findings_met = met(name)
    expected = {f"GAP{code}" for code in re.findall(r"_(8\d\d)", name)}
    assert {finding.code for finding in findings_met} == expected, [
        finding.evidence for finding in findings_met
    ]
    folder = Path(str(__file__)).parent
    assert all(
        finding.line is not None and Path(finding.line.file).parent == folder for finding in findings_met
    )
