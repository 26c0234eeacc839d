"""The run under other settings: those the user names, or all that make sense; ranked."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gapless.memory.settings import Settings, parse
from gapless.memory.simulate import Begin, simulate
from gapless.model.memory import MemoryRun
from gapless.model.memory_report import Outcome, Trial

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

Progress = Callable[[int, int], None]
_ALONE = 400_000
"""Fewer events than this in all are replayed here: starting processes takes longer."""
_FINE = 0.01
"""Peaks that differ by less than this share of the baseline's are the same."""
_MATTERS = 0.02
"""A lower peak by this share is an improvement."""
_SOONER = 1_000_000
"""Nanoseconds in calls to the driver that must be saved to count as an improvement, and a tenth of them."""

EXPANDABLE = "expandable_segments:True"
_COLLECT = "garbage_collection_threshold:{},per_process_memory_fraction:0.98"
_COARSE = "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"


class Where(NamedTuple):
    """What every trial shares: bytes for this process, bytes of the device, and how a run begins."""

    capacity: int = -1
    total: int = -1
    begin: Begin = "recorded"


def candidates(limited: bool) -> list[str]:
    """The settings that a search tries; those that collect garbage only where memory is `limited`."""
    found = [EXPANDABLE]
    found += [f"max_split_size_mb:{size}" for size in (32, 64, 128, 256, 512, 1024)]
    found += [f"roundup_power2_divisions:{parts}" for parts in (1, 2, 4, 8, 16, 32)]
    found += [_COARSE]
    found += [f"expandable_segments:True,roundup_power2_divisions:{parts}" for parts in (4, 8, 16)]
    found += [f"max_split_size_mb:{size},roundup_power2_divisions:8" for size in (128, 512)]
    if limited:
        collecting = [_COLLECT.format(share) for share in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)]
        found += collecting
        found += [f"{collecting[3]},max_split_size_mb:{size}" for size in (128, 512)]
        found += [f"{collecting[3]},roundup_power2_divisions:{parts}" for parts in (4, 8, 16)]
        found += [f"{collecting[1]},roundup_power2_divisions:8"]
    return found


def attempt(run: MemoryRun, settings: str, where: Where) -> Trial:
    """One trial.

    Raises:
        InvalidSettings: torch would refuse `settings`.
        UsageError: a fraction of a device that is unknown is asked for.
    """
    parsed = parse(settings)
    if parsed.backend != "native":
        return Trial(settings=settings, note="another allocator (CUDA's own): not simulated")
    limited = parse(run.settings).fraction  # where a call has set it, no setting lifts it
    parsed = parsed._replace(fraction=min(parsed.fraction, limited))
    outcome = simulate(run, parsed, **where._asdict())
    return Trial(settings=settings, outcome=outcome, note=_note(parsed))


def _note(settings: Settings) -> str:
    notes = []
    if settings.garbage_collection_threshold and not settings.collects:
        notes.append(
            "garbage_collection_threshold has no effect while the process may use the whole GPU: also set "
            "per_process_memory_fraction"
        )
    if settings.rejects and settings.fraction >= 1:
        notes.append("throw_on_cudamalloc_oom has no effect without per_process_memory_fraction")
    if settings.unsimulated:
        notes.append(f"not simulated: {', '.join(settings.unsimulated)}")
    if settings.ignored:
        notes.append(f"no effect on reserved memory: {', '.join(settings.ignored)}")
    return "; ".join(notes)


def attempt_all(
    run: MemoryRun,
    settings: Sequence[str],
    where: Where,
    jobs: int = 1,
    progress: Progress | None = None,
) -> list[Trial]:
    """All trials, in their order: on `jobs` processes where that is worth it."""
    for one in settings:
        parse(one)  # all that is wrong is said before the first is tried
    if jobs < 2 or len(settings) < 2 or len(run) * len(settings) < _ALONE:
        found = []
        for done, one in enumerate(settings, 1):
            found.append(attempt(run, one, where))
            if progress is not None:
                progress(done, len(settings))
        return found
    return _in_processes(run, settings, where, jobs, progress)


def _in_processes(
    run: MemoryRun, settings: Sequence[str], where: Where, jobs: int, progress: Progress | None
) -> list[Trial]:
    import multiprocessing  # which is a tenth of what a small run takes, and most need none
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool

    # Lines and frames stay here: a replay needs none of them.
    bare = msgspec.structs.replace(run, lines=(), places=(), notes=())
    context = multiprocessing.get_context("spawn")
    data = msgspec.msgpack.encode(bare)
    found: dict[int, Trial] = {}
    with ProcessPoolExecutor(min(jobs, len(settings)), context, _receive, (data, where)) as pool:
        running = {pool.submit(_attempt_there, one): at for at, one in enumerate(settings)}
        try:
            for future in as_completed(running):
                found[running[future]] = future.result()
                if progress is not None:
                    progress(len(found), len(settings))
        except BrokenProcessPool:
            pass  # one was killed, for want of memory perhaps: what it left is tried here
        except BaseException:
            _stop(pool)
            raise
    for at, one in enumerate(settings):
        if at not in found:
            found[at] = attempt(run, one, where)
            if progress is not None:
                progress(len(found), len(settings))
    return [_with_line(run, found[at]) for at in range(len(settings))]


def _stop(pool: ProcessPoolExecutor) -> None:
    """End the processes in the middle of their work: nobody wants its result any more."""
    workers = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for one in workers:
        one.terminate()


def _with_line(run: MemoryRun, trial: Trial) -> Trial:
    """The line of a shortage, which the other process could not know."""
    if trial.outcome is None:
        return trial
    known = {"shortage": trial.outcome.shortage, "failure": trial.outcome.failure}
    for name, one in known.items():
        if one is not None and one.event >= 0:
            known[name] = msgspec.structs.replace(one, line=run.line(run.place[one.event]))
    return msgspec.structs.replace(trial, outcome=msgspec.structs.replace(trial.outcome, **known))


_there: tuple[MemoryRun, Where] | None = None


def _receive(data: bytes, where: Where) -> None:
    """In each process, once."""
    global _there
    if os.name == "posix":
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _there = msgspec.msgpack.decode(data, type=MemoryRun), where


def _attempt_there(settings: str) -> Trial:
    assert _there is not None
    return attempt(_there[0], settings, _there[1])


# Ranking ------------------------------------------------------------------------------------------


def rank(trials: Sequence[Trial], baseline: Outcome) -> list[Trial]:
    """The best first: those that come through, with the fewest failures and retries.

    Then, where the run had trouble, what takes the least time; where it had none, the lowest peak. Where a
    request failed, expandable segments and then one setting alone come before several together.
    """
    return sorted(trials, key=lambda one: _rank(one, baseline))


def _rank(trial: Trial, baseline: Outcome) -> tuple[float, ...]:
    outcome = trial.outcome
    if outcome is None:
        return (2,)
    if outcome.shortage is not None:
        return 1, -outcome.done, outcome.peak_reserved
    trouble = baseline.shortage is not None or baseline.failures or baseline.retries
    grain = max(_FINE * baseline.peak_reserved, 1)
    peak, simple = round(outcome.peak_reserved / grain), trial.settings.count(":")
    failed = baseline.shortage is not None or baseline.failures
    last: tuple[int, ...] = (outcome.price, peak, simple) if trouble else (peak, outcome.price, simple)
    last = (trial.settings != EXPANDABLE, simple, *last) if failed else last
    return 0, outcome.failures, outcome.retries, *last


def lowers_peak(outcome: Outcome, baseline: Outcome) -> bool:
    """Whether `outcome` reserves so much less at its peak that it is worth a change of settings."""
    return outcome.peak_reserved <= (1 - _MATTERS) * baseline.peak_reserved


def improves(outcome: Outcome | None, baseline: Outcome) -> bool:
    """Whether `outcome` is worth a change of settings; where a request still fails it never is."""
    if outcome is None or outcome.shortage is not None or outcome.failures:
        return False
    if baseline.shortage is not None or baseline.failures:
        return True
    if outcome.retries != baseline.retries:
        return outcome.retries < baseline.retries
    if lowers_peak(outcome, baseline):
        return True
    saved = baseline.price - outcome.price
    same = outcome.peak_reserved <= (1 + _FINE) * baseline.peak_reserved
    return same and saved >= max(_SOONER, baseline.price / 10)
