"""Running a piece of code on the emulated device, and what was found at which of its lines."""

from __future__ import annotations

import collections
import linecache
from pathlib import Path

import torch

import gapless
from gapless.rules import match_rule

Found = collections.defaultdict[int, "collections.Counter[str]"]


def run(text: str, path: Path) -> Found:
    """Run `text` as the script at `path` on the emulated device: waits by line and rule.

    Raises:
        AssertionError: a wait is shown at a line of another file.
    """
    linecache.checkcache(str(path))
    torch.distributions.Distribution.set_default_validate_args(True)  # compiling turns it off for the process
    names = {"__name__": "__main__", "__file__": str(path)}
    with gapless.emulate() as emulation:
        try:
            exec(compile(text, str(path), "exec"), names)
        finally:
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
    session = emulation.session
    counts: Found = collections.defaultdict(collections.Counter)
    for event in session.events:
        site = session.sites[event.site]
        line = site.line
        assert line is not None, f"no line for {site.operator}"
        assert line.file == str(path), f"{site.operator} is shown at {line.where}, not in {path}"
        counts[line.line][match_rule(site).code] += event.waits
    return counts
