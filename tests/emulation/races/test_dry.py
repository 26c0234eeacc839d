"""Without values races are found as with them, but for what only the contents of memory tell."""

from __future__ import annotations

import pytest
from emulation.races.patterns import PATTERNS

import gapless
from gapless.analyze.findings.race_findings import findings

KINDS = {
    "copy_to_cpu_read_wrong_801": {"GAP801"},
    "copy_to_cpu_read_synchronized": set(),
    "staging_refilled_wrong_802": {"GAP802"},
    "staging_refilled_with_event": set(),
    "made_there_used_here_wrong_803": {"GAP803"},
    "copied_there_waiting": set(),
    "prefetcher_without_record_wrong_804": {"GAP804"},
    "prefetcher": set(),
    "staging_written_by_c_wrong_802": set(),
}


@pytest.mark.parametrize("name", sorted(KINDS))
def test_pattern(name: str) -> None:
    with gapless.emulate(dry=True) as emulation:
        PATTERNS[name]()
    assert {finding.code for finding in findings(emulation.session.races)} == KINDS[name]
