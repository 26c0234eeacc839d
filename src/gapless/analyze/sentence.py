"""The sentence a report begins with."""

from __future__ import annotations

import os

from gapless.model import Session, StepSummary
from gapless.model.wording import count, rate


def sentence(session: Session, steps: StepSummary) -> str:
    """How often the host waits, in how many steps of what, on which device."""
    name = _name(session.script)
    where = _device(session)
    if session.environment.unused and session.ending.how in ("error", "not-emulated"):
        return f"{name} ended before it put anything on the GPU"
    if session.environment.unused:
        return f"{name} put nothing on the GPU and so never waited for it: it ran on the CPU"
    if not steps.seen:
        total = sum(event.waits for event in session.events)
        if not total:
            return f"No waits in {name}{where}, and no training step"
        return f"{count(total, 'wait')} in {name}{where}, which took no training step"
    sample = f"{steps.steady} steady step{'' if steps.steady == 1 else 's'} of {name}{where}"
    if not steps.most:
        return f"No waits in {sample}"
    spread = f" ({steps.least} to {steps.most})" if steps.least != steps.most else ""
    if steps.waits_per_step < 1:
        waits = round(steps.waits_per_step * steps.steady)
        if steps.steady % waits:
            return f"{count(waits, 'wait')} in {sample}"
    return f"{rate(steps.waits_per_step, step='training step')}{spread} in {sample}"


def _name(script: tuple[str, ...]) -> str:
    """What was run, in a word: the script's file, or the module after ``-m``."""
    if not script:
        return "the run"
    return script[1] if script[0] == "-m" and len(script) > 1 else os.path.basename(script[0])


def _device(session: Session) -> str:
    device = session.environment.device
    if not device:
        return ""
    if not session.environment.emulated:
        return f" on {device}"
    return f" on an emulated {device}"
