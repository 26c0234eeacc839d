"""A rank whose peers are not there beside the same rank among real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from field.running import Outcome, check

from gapless.model import Session
from gapless.model.memory import ALLOC, FREE, MemoryRun
from gapless.model.session import load
from gapless.torch_internals import VERSION

SCRIPTS = Path(__file__).parent / "scripts"


def _traffic(outcome: Outcome) -> list[Any]:
    return outcome.report["traffic"]


def _waits(session: Session) -> dict[tuple[Any, ...], int]:
    counts: dict[tuple[Any, ...], int] = {}
    for event in session.events:
        site = session.sites[event.site]
        key = site.line and site.line.line, site.operator, site.mechanism, event.tick
        counts[key] = counts.get(key, 0) + event.waits
    return counts


def _requests(run: MemoryRun) -> list[tuple[tuple[int, str], int]]:
    """Bytes of each request in order, with the module that it is for; and the bytes in use then."""
    used: dict[int, int] = {}
    requests = []
    for action, ident, size, place in zip(run.action, run.ident, run.size, run.place, strict=True):
        if action == ALLOC:
            requests.append(((size, run.places[place].module), sum(used.values())))
            used[ident] = size
        elif action == FREE:
            del used[ident]
    return requests


@pytest.mark.skipif(
    VERSION < (2, 6), reason=f"torch 2.{VERSION[1]} lacks fully_shard, which is there since 2.6"
)
def test_the_same_waits_memory_and_collectives(tmp_path: Path) -> None:
    saved = {}
    reports = {}
    for name, options, ranks in (("real", (), 2), ("alone", ("--world-size", "2"), 0)):
        path = tmp_path / f"{name}.gapless.json"
        options = ("--steps", "4", "--memory", "-o", str(path), *options)
        reports[name] = check(SCRIPTS / "fsdp2.py", options=options, ranks=ranks, folder=tmp_path)
        saved[name] = load(path)
    real, alone = saved["real"], saved["alone"]
    assert _waits(alone) == _waits(real)
    assert _traffic(reports["alone"]) == _traffic(reports["real"]) != []
    (theirs,), (mine,) = real.memory, alone.memory
    # A thread of gloo's may hold what one collective sends and receives for a little longer.
    held = max((row["sent"] + row["received"]) // row["times"] for row in _traffic(reports["real"]))
    for (request, used), (their_request, theirs_used) in zip(_requests(mine), _requests(theirs), strict=True):
        assert request == their_request
        assert 0 <= theirs_used - used <= held
    assert alone.environment == real.environment
