"""What real GPUs did is what `gapless.model.copies` says, for each call that can tell."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from gapless.model.copies import call_blocks
from gapless.replay.links import find_links

PROFILES = {"d242": (9, 0), "9b36": (7, 0), "c14b": (8, 0), "fa7b": (7, 0)}
QUEUED = 50_000
"""Nanoseconds from a call to its copy: something was queued before it, which a call that waits waits for."""


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_calls_return_when_the_table_says(real, name):
    timeline = real(name)
    links = find_links(timeline)
    work, host = timeline.work, timeline.host
    counter: Counter[bool | None] = Counter()
    for row in np.flatnonzero(links.copies.pageable & (links.call >= 0)).tolist():
        call = links.call[row]
        if work.start[row] - host.start[call] < QUEUED:
            continue
        blocks = call_blocks(
            "pageable", bool(links.copies.to_device[row]), int(work.bytes[row]), PROFILES[name]
        )
        counter[blocks] += 1
        if blocks is False:
            assert host.end[call] <= work.start[row]
        elif blocks:
            assert host.end[call] > work.start[row]
    assert counter[True] + counter[False]
