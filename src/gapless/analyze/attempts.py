"""Turn a session that was recorded to see whether it fits into an `Attempt`."""

from __future__ import annotations

import msgspec

from gapless.analyze.memory_report import lasts, replay_memory
from gapless.analyze.run.steps import find_steps
from gapless.model import Session
from gapless.model.attempt import Attempt
from gapless.model.estimate import Range
from gapless.model.memory import MemoryRun


def make_attempt(session: Session, label: str, *, value: int = -1, seconds: float = 0.0) -> Attempt:
    """Return whether `session` fits, on its fullest device, and how long a step takes."""
    result = Attempt(what=label, value=value, seconds=seconds)
    failed = _failure(session)
    if failed:
        return msgspec.structs.replace(result, failed=failed)
    from gapless.memory.fits import fits

    each = [fits(run) for run in session.memory]
    tight = min(each, key=lambda fit: (fit.fits, fit.has - fit.needs))
    finished = session.ending.is_own
    left = [steps_until_full(run, fit.has, finished) for run, fit in zip(session.memory, each, strict=True)]
    result = msgspec.structs.replace(
        result,
        fits=tight.fits,
        needs=tight.needs,
        has=tight.has,
        allocated=tight.allocated,
        lasts=min((steps for steps in left if steps >= 0), default=-1) if tight.fits else -1,
    )
    return _with_step_time(result, session)


def steps_until_full(run: MemoryRun, room: int, finished: bool) -> int:
    """Return after how many steps the growing memory of `run` fills `room` bytes; -1 if it does not grow
    or the run has `finished`."""
    from gapless.memory.growth import find_growth

    return lasts(replay_memory(run), room) if not finished and find_growth(run) else -1


def _failure(session: Session) -> str:
    """Return why `session` says nothing about memory; "" if it does."""
    ending = session.ending
    if not ending.is_good:
        return ending.message or f"it exited with status {ending.status}"
    if not session.memory:
        return "it put nothing on the GPU"
    return "" if find_steps(session.marks).seen else "it took no training step"


def _with_step_time(attempt: Attempt, session: Session) -> Attempt:
    """Return `make_attempt` with the estimated step and throughput of `session`, if there is an estimate."""
    if session.programme is None:
        return attempt
    from gapless.analyze.estimate.estimate import estimate

    timing = estimate(session, find_steps(session.marks))
    if timing is None or timing.step == Range():
        return attempt
    return msgspec.structs.replace(attempt, step=timing.step, throughput=timing.throughput)
