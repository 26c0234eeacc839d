"""Where a script makes the CPU wait, as torch's debug mode, the profiler and Gapless see it.

Debug mode does not see explicit waits, copies from pageable memory that are asked not to block, nor what
backward waits for (another thread runs it, whose Python frames are left out). The driver, whom the profiler
asks, sees all of them, and what the CUDA libraries do.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import _experiment
import torch

from gapless.model import SourceLine

Lines = dict[str, int]
WORDS = "synchronizing CUDA operation"
_UNSEEN = ("explicit", "free")
"""Mechanisms of waits that debug mode misses."""


@contextmanager
def record_debug_mode(folder: Path, counts: Counter[str]) -> Iterator[None]:
    """Count debug mode's warnings by the innermost line in `folder`, ``file:line``."""

    def hear(message: Any, *_: Any, **__: Any) -> None:
        if WORDS not in str(message) or threading.current_thread() is not threading.main_thread():
            return
        frames = traceback.extract_stack()
        if any(frame.name == "_engine_run_backward" for frame in frames):
            return
        own = [frame for frame in frames if Path(frame.filename).parent == folder]
        if own:
            counts[f"{Path(own[-1].filename).name}:{own[-1].lineno}"] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = hear
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def count_waits(run: Callable[[], object]) -> int:
    """Return the waits of a call that debug mode sees."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum(WORDS in str(warning.message) for warning in heard)


def profiler(real: bool, stacks: bool = True, **options: Any) -> torch.profiler.profile:
    """Return a profiler with the driver's synchronization events and Python stacks."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if real:
        from torch._C._profiler import _ExperimentalConfig

        activities.append(torch.profiler.ProfilerActivity.CUDA)
        options["experimental_config"] = _ExperimentalConfig(enable_cuda_sync_events=True)
    return torch.profiler.profile(activities=activities, with_stack=stacks, **options)


def waits_in_profile(path: Path) -> Lines:
    """Return the waits in a profile by the user's innermost function; those of backward under "backward".

    The profiler records where a Python function begins, not the line executed.
    """
    from gapless.analyze.profile.lines import PlaceIndex
    from gapless.analyze.profile.waits import find_waits
    from gapless.trace.read import read

    timeline = read(path)
    waits = find_waits(timeline)
    places = PlaceIndex(timeline)
    counts: Counter[str] = Counter()
    for row in waits.rows[waits.counts].tolist():
        place = places.place(row)
        own = [line for line in place.stack if not line.library]
        if place.node or own:
            counts["backward" if place.node else _function(own[0])] += 1
    return dict(counts)


def predict_waits(
    command: Sequence[str], environment: dict[str, str], options: Sequence[str] = ()
) -> list[Lines]:
    """Return the waits of ``python COMMAND`` that `gapless check` predicts: those debug mode sees by line,
    and all by function."""
    from gapless.model.session import load

    folder = (_experiment.ROOT / command[0]).parent
    with tempfile.TemporaryDirectory() as temporary:
        saved = Path(temporary) / "run.gapless.json"
        words = ["-m", "gapless", "check", "-q", "--no-loader", "--steps", "all", *options, "-o", str(saved)]
        done = subprocess.run(
            [sys.executable, *words, str(_experiment.ROOT / command[0]), *command[1:]],
            cwd=temporary, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        if not saved.exists():
            raise RuntimeError(f"gapless check failed: {done.stderr[-600:]}")
        session = load(saved)
    if not session.ending.is_good:
        raise RuntimeError(f"the script failed: {session.ending.message}")
    visible: Counter[str] = Counter()
    every: Counter[str] = Counter()
    for event in session.events:
        site = session.sites[event.site]
        own = [frame for frame in site.stack if Path(frame.file).parent == folder]
        if site.in_backward or own:
            every["backward" if site.in_backward else _function(own[0])] += event.waits
            if not site.in_backward and site.mechanism not in _UNSEEN:
                visible[f"{Path(own[0].file).name}:{own[0].line}"] += event.waits
    return [dict(visible), dict(every)]


def _function(line: SourceLine) -> str:
    return f"{Path(line.file).name}: {line.function.rpartition('.')[2]}"
