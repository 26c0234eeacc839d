"""Replay a run under other settings, given by the user or all sensible ones, and rank them."""

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
_MIN_EVENTS_FOR_PROCESSES = 400_000
"""Below this many events in all, starting processes takes longer than replaying here."""
_PEAK_RESOLUTION = 0.01
"""Peaks that differ by less than this share of the baseline's rank as equal."""
_MIN_PEAK_SAVING = 0.02
"""A peak lower by this share is an improvement."""
_MIN_TIME_SAVING_NS = 1_000_000
"""Time in driver calls that must be saved to count as an improvement; also a tenth of the baseline's."""

EXPANDABLE = "expandable_segments:True"
_COLLECT = "garbage_collection_threshold:{},per_process_memory_fraction:0.98"
_COARSE = "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"


class TrialConditions(NamedTuple):
    """What all trials share: bytes for this process, bytes of the device, and how a run begins."""

    capacity: int = -1
    total: int = -1
    begin: Begin = "recorded"


def candidates(limited: bool) -> list[str]:
    """Return the settings of a search; those that collect garbage only if memory is `limited`."""
    settings = [EXPANDABLE]
    settings += [f"max_split_size_mb:{size}" for size in (32, 64, 128, 256, 512, 1024)]
    settings += [f"roundup_power2_divisions:{parts}" for parts in (1, 2, 4, 8, 16, 32)]
    settings += [_COARSE]
    settings += [f"expandable_segments:True,roundup_power2_divisions:{parts}" for parts in (4, 8, 16)]
    settings += [f"max_split_size_mb:{size},roundup_power2_divisions:8" for size in (128, 512)]
    if limited:
        collecting = [_COLLECT.format(share) for share in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)]
        settings += collecting
        settings += [f"{collecting[3]},max_split_size_mb:{size}" for size in (128, 512)]
        settings += [f"{collecting[3]},roundup_power2_divisions:{parts}" for parts in (4, 8, 16)]
        settings += [f"{collecting[1]},roundup_power2_divisions:8"]
    return settings


def attempt(run: MemoryRun, settings: str, where: TrialConditions) -> Trial:
    """Replay `run` under `settings`.

    Raises:
        InvalidSettings: torch would reject `settings`.
        UsageError: they need the size of the device, which is unknown.
    """
    parsed = parse(settings)
    if parsed.backend != "native":
        return Trial(settings=settings, note="another allocator (CUDA's own): not simulated")
    limited = parse(run.settings).fraction  # a limit set by a call is not lifted by a setting
    parsed = parsed._replace(fraction=min(parsed.fraction, limited))
    outcome = simulate(run, parsed, **where._asdict())
    return Trial(settings=settings, outcome=outcome, note=_trial_notes(parsed))


def _trial_notes(settings: Settings) -> str:
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
    where: TrialConditions,
    jobs: int = 1,
    progress: Progress | None = None,
) -> list[Trial]:
    """Try all settings, in order; on `jobs` processes if that is faster."""
    for text in settings:
        parse(text)  # reports errors before the first trial
    if jobs < 2 or len(settings) < 2 or len(run) * len(settings) < _MIN_EVENTS_FOR_PROCESSES:
        trials = []
        for done, text in enumerate(settings, 1):
            trials.append(attempt(run, text, where))
            if progress is not None:
                progress(done, len(settings))
        return trials
    return _in_processes(run, settings, where, jobs, progress)


def _in_processes(
    run: MemoryRun, settings: Sequence[str], where: TrialConditions, jobs: int, progress: Progress | None
) -> list[Trial]:
    import multiprocessing  # a tenth of the time of a small run, and most need none
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool

    # a replay needs no lines and frames
    bare = msgspec.structs.replace(run, lines=(), places=(), notes=())
    context = multiprocessing.get_context("spawn")
    data = msgspec.msgpack.encode(bare)
    trials: dict[int, Trial] = {}
    with ProcessPoolExecutor(min(jobs, len(settings)), context, _initialize_worker, (data, where)) as pool:
        running = {pool.submit(_attempt_in_worker, text): at for at, text in enumerate(settings)}
        try:
            for future in as_completed(running):
                trials[running[future]] = future.result()
                if progress is not None:
                    progress(len(trials), len(settings))
        except BrokenProcessPool:
            pass  # a process was killed, perhaps out of memory: its trials are repeated here
        except BaseException:
            _stop(pool)
            raise
    for at, text in enumerate(settings):
        if at not in trials:
            trials[at] = attempt(run, text, where)
            if progress is not None:
                progress(len(trials), len(settings))
    return [_with_line(run, trials[at]) for at in range(len(settings))]


def _stop(pool: ProcessPoolExecutor) -> None:
    """Terminate the workers at once: their results are not needed."""
    workers = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.terminate()


def _with_line(run: MemoryRun, trial: Trial) -> Trial:
    """Add the lines of shortages, which worker processes do not have."""
    if trial.outcome is None:
        return trial
    shortages = {"shortage": trial.outcome.shortage, "failure": trial.outcome.failure}
    for name, shortage in shortages.items():
        if shortage is not None and shortage.event >= 0:
            shortages[name] = msgspec.structs.replace(shortage, line=run.line(run.place[shortage.event]))
    return msgspec.structs.replace(trial, outcome=msgspec.structs.replace(trial.outcome, **shortages))


_worker_state: tuple[MemoryRun, TrialConditions] | None = None


def _initialize_worker(data: bytes, where: TrialConditions) -> None:
    """Store run and conditions in a worker process."""
    global _worker_state
    if os.name == "posix":
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _worker_state = msgspec.msgpack.decode(data, type=MemoryRun), where


def _attempt_in_worker(settings: str) -> Trial:
    assert _worker_state is not None
    return attempt(_worker_state[0], settings, _worker_state[1])


# Ranking ------------------------------------------------------------------------------------------


def rank(trials: Sequence[Trial], baseline: Outcome) -> list[Trial]:
    """Sort trials, best first: those that succeed, with the fewest failures and retries.

    Then by time if the run had failures or retries, else by peak. If a request failed, expandable segments
    and then single settings rank before combinations.
    """
    return sorted(trials, key=lambda trial: _rank(trial, baseline))


def _rank(trial: Trial, baseline: Outcome) -> tuple[float, ...]:
    outcome = trial.outcome
    if outcome is None:
        return (2,)
    if outcome.shortage is not None:
        return 1, -outcome.done, outcome.peak_reserved
    trouble = baseline.shortage is not None or baseline.failures or baseline.retries
    grain = max(_PEAK_RESOLUTION * baseline.peak_reserved, 1)
    peak, simple = round(outcome.peak_reserved / grain), trial.settings.count(":")
    failed = baseline.shortage is not None or baseline.failures
    last: tuple[int, ...] = (outcome.price, peak, simple) if trouble else (peak, outcome.price, simple)
    last = (trial.settings != EXPANDABLE, simple, *last) if failed else last
    return 0, outcome.failures, outcome.retries, *last


def lowers_peak(outcome: Outcome, baseline: Outcome) -> bool:
    """Whether the peak of `outcome` is enough lower to be worth a change of settings."""
    return outcome.peak_reserved <= (1 - _MIN_PEAK_SAVING) * baseline.peak_reserved


def improves(outcome: Outcome | None, baseline: Outcome) -> bool:
    """Whether `outcome` is worth a change of settings; never if a request still fails."""
    if outcome is None or outcome.shortage is not None or outcome.failures:
        return False
    if baseline.shortage is not None or baseline.failures:
        return True
    if outcome.retries != baseline.retries:
        return outcome.retries < baseline.retries
    if lowers_peak(outcome, baseline):
        return True
    saved = baseline.price - outcome.price
    same = outcome.peak_reserved <= (1 + _PEAK_RESOLUTION) * baseline.peak_reserved
    return same and saved >= max(_MIN_TIME_SAVING_NS, baseline.price / 10)
