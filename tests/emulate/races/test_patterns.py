"""Wrong versions are found, right ones are not."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import torch.distributed as dist
from emulate.races import patterns

import gapless
from gapless.analyze.races import findings

PATTERNS = {
    name: function
    for name, function in vars(patterns).items()
    if inspect.isfunction(function) and function.__module__ == patterns.__name__
    and not inspect.signature(function).parameters
    and name not in ("gpu", "pinned", "current", "group")
}  # fmt: skip


def met(name: str) -> list[Any]:
    """The findings of one pattern."""
    world = 2 if name in patterns.RANKS else None
    try:
        with gapless.emulate(world_size=world) as seen:
            PATTERNS[name]()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return findings(seen.session.races)


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_pattern(name: str) -> None:
    found = met(name)
    expected = {f"GAP{code}" for code in re.findall(r"_(8\d\d)", name)}
    assert {one.code for one in found} == expected, [one.evidence for one in found]
    file = inspect.getsourcefile(patterns)
    assert all(one.line is not None and one.line.file == file for one in found)
