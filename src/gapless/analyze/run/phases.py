"""Phases: parts of a run that recur less often than steps, recognised by where in the loops they wait.

What is in an outer loop but not in the training loop recurs with each of its passes. Evaluation is recognised
by the model's mode or the function's name, a checkpoint by ``torch.save``, and a rollout, which may run in
evaluation mode, by the function's name.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from gapless.analyze.run.loop import Loop
from gapless.analyze.run.steps import RunSteps
from gapless.model import Event, Finding, Recurrence, Session, Site, SourceLine, Stack
from gapless.rules import match_rule

EVALUATION = "evaluation"
CHECKPOINT = "checkpoint"
ROLLOUT = "rollout"

_PASS_NAMES = ("epoch", "iteration", "update", "episode", "round", "trial", "fold")
"""Names for passes of a loop, looked for in its variable."""
_PHASE_PATTERNS = (
    (EVALUATION, re.compile(r"(?:^|_)(?:eval|evaluate|evaluation|validate|validation|test)(?:_|$)")),
    (CHECKPOINT, re.compile(r"(?:^|_)(?:checkpoint|checkpoints|ckpt|save_model|save_state)(?:_|$)|^_?save$")),
    (ROLLOUT, re.compile(r"(?:^|_)(?:rollout|rollouts|collect|trajectory|trajectories)(?:_|$)")),
)
"""Function names that tell a phase."""


_SAVE_FUNCTIONS = re.compile(r"^_?save_(?:checkpoint|model|pretrained|state)$")
"""Library functions that save a checkpoint; ``torch.utils.checkpoint`` saves none."""

NAMED_PHASES = (EVALUATION, CHECKPOINT, ROLLOUT)
"""Phases with a name of their own; others are named after their loop."""


def prefer_own_names(phases: Iterable[Recurrence]) -> list[Recurrence]:
    """Return the `phases` with a name of their own, or all if none has one."""
    phases = list(phases)
    return [phase for phase in phases if phase.name in NAMED_PHASES] or phases


def phase_of_name(function: str) -> str:
    """Return the phase that a function of this name is; "" if the name tells none.

    >>> phase_of_name("evaluate_policy")
    'evaluation'
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", function.rpartition(".")[2]).lower()
    return next((name for name, pattern in _PHASE_PATTERNS if pattern.search(words)), "")


class Phases:
    """The phase of each event of a session, and how often each phase happened."""

    def __init__(self, session: Session, steps: RunSteps, loops: Sequence[Loop]) -> None:
        self._steps = steps
        self._source_phases = session.phases
        self._by_site = _by_site(session, steps, loops) if steps.seen else {}
        self._in_rollout = [_is_in_rollout(site.stack) for site in session.sites]
        self._ticks: dict[str, set[int]] = {}
        for event in session.events:
            name = self.name(event)
            if name:
                self._ticks.setdefault(name, set()).add(event.tick)

    def name(self, event: Event) -> str:
        """Return the phase of `event`; "" for training steps, set-up and what follows the last step."""
        if event.phase != "eval":
            return self._by_site.get(event.site, "")
        return ROLLOUT if self._in_rollout[event.site] else EVALUATION

    def recurrence(self, name: str) -> Recurrence:
        """Return how often the phase `name` happened; `times` is 0 if no steps separate occurrences."""
        if not self._steps.seen:
            return Recurrence(name=name)
        at = sorted({self._steps.of(tick) for tick in self._ticks.get(name, ())})
        matches = [phase for phase in self._source_phases if phase.name == name]
        every = recurrence_interval(at, self._steps.seen) or (matches[0].every if len(matches) == 1 else 0)
        return Recurrence(name=name, every=every, times=len(at), line=matches[0].line if matches else None)

    def steps(self) -> frozenset[int]:
        """Return the steps that also contain a phase which is part of training."""
        return frozenset(
            self._steps.of(tick)
            for name, ticks in self._ticks.items()
            if name != EVALUATION
            for tick in ticks
        )


def sum_phases(source_phases: Iterable[Recurrence], findings: Iterable[Finding]) -> tuple[Recurrence, ...]:
    """Return a run's phases with their syncs, those reached first; `source_phases` are from the source."""
    by_name: dict[str, Recurrence] = {}
    for finding in findings:
        timing = finding.frequency
        if timing.phase:
            before = by_name.get(timing.phase)
            waits = timing.waits + (before.waits if before else 0.0)
            by_name[timing.phase] = Recurrence(
                name=timing.phase, every=timing.apart, times=timing.times, waits=waits, line=finding.line
            )
    rest = [phase for phase in source_phases if phase.name not in by_name]
    return (
        *sorted(by_name.values(), key=lambda phase: -phase.waits),
        *sorted(rest, key=lambda phase: not phase.times),
    )


def recurrence_interval(at: Sequence[int], step_count: int) -> int:
    """Return N if phases came every N steps before the steps `at`; 0 if they did not, or came once.

    What follows the last of the `step_count` steps may come early, because the run was over.
    """
    if len(at) > 2 and at[-1] == step_count:
        at = at[:-1]
    between = {later - earlier for earlier, later in pairwise(at)}
    return between.pop() if len(between) == 1 else 0


def _by_site(session: Session, steps: RunSteps, loops: Sequence[Loop]) -> dict[int, str]:
    """Return the phase of each site that waits in one.

    What recurs in every step is part of it, whatever loop it is in. What happened only before the first step
    is no phase if only a library's loop surrounds it, which may have called the script, or if it moves a
    model: then the loop is over experiments that each set up their own.
    """
    calls = _most_calls(session.events)
    later = {event.site for event in session.events if steps.of(event.tick) not in steps.firsts}
    phase_of_site: dict[int, str] = {}
    for number, site in enumerate(session.sites):
        name = _phase(site, loops, calls.get(number, 0))
        if name and (number in later or not (_is_in_library_loop(site, loops) or _moves_a_module(site))):
            phase_of_site[number] = name
    steady = set(steps.steady)
    at: dict[int, set[int]] = {}
    for event in session.events:
        if event.site in phase_of_site and event.phase == "train":
            at.setdefault(event.site, set()).add(steps.of(event.tick))
    by_name: dict[str, set[int]] = {}
    for number, name in phase_of_site.items():
        by_name.setdefault(name, set()).update(at.get(number, ()))
    return {
        number: name
        for number, name in phase_of_site.items()
        if not steady <= by_name[name] or len(steady) < 2
    }


def _most_calls(events: Iterable[Event]) -> dict[int, int]:
    """Return the most calls of each site between two marks."""
    most: dict[int, int] = {}
    for event in events:
        most[event.site] = max(most.get(event.site, 0), event.calls)
    return most


def _phase(site: Site, loops: Sequence[Loop], calls: int) -> str:
    """Return the phase of `site` by the loops that contain it; "" for the training loop, or outside loops."""
    level = next((number for number, loop in enumerate(loops) if loop.holds(site.stack)), None)
    if level is None:
        return ""
    if _is_checkpoint(site.stack, loops[level]):
        return CHECKPOINT
    if not level:
        return ""
    loop = loops[level]
    depth = next(n for n, frame in enumerate(site.stack) if loop.holds((frame,)))
    functions = (phase_of_name(frame.function) for frame in reversed(site.stack[:depth]) if frame.is_user)
    looped = calls > 1 and not _moves_a_module(site)  # a moved module copies each parameter
    return next(filter(None, functions), "") or phase_at(loop, site.stack[depth].line, looped)


def _moves_a_module(site: Site) -> bool:
    """Whether `site` is a module moved to the GPU, which copies each of its parameters."""
    return match_rule(site).name == "module-moved"


def _is_in_library_loop(site: Site, loops: Sequence[Loop]) -> bool:
    """Whether the innermost loop that contains `site` is in a library's code."""
    loop = next(candidate for candidate in loops if candidate.holds(site.stack))
    return not next(frame for frame in site.stack if loop.holds((frame,))).is_user


def _is_checkpoint(stack: Stack, loop: Loop) -> bool:
    """Whether `stack`, below `loop`, is in ``torch.save`` or a function that saves a checkpoint."""
    below = itertools.takewhile(lambda frame: not loop.holds((frame,)), stack)
    return any(_frame_saves(frame) for frame in below)


def _frame_saves(frame: SourceLine) -> bool:
    """Whether the frame's function saves a checkpoint, by its name."""
    name = frame.function.rpartition(".")[2]
    if frame.is_user:
        return "save" in name and phase_of_name(name) == CHECKPOINT
    return bool(_SAVE_FUNCTIONS.search(name)) or (
        frame.library == "torch" and frame.file.endswith("serialization.py")
    )


def _is_in_rollout(stack: Stack) -> bool:
    """Whether the innermost function that names a phase is a rollout."""
    phases = (
        phase_of_name(frame.function) for frame in stack if frame.library != "torch"
    )  # torch's own functions may be called validate
    return next((name for name in phases if name in (EVALUATION, ROLLOUT)), "") == ROLLOUT


def phase_at(loop: Loop, line: int, looped: bool) -> str:
    """Return the phase by its place in the loop's body: before or after the line that leads to the steps.

    `looped` says that it does the same thing several times.
    """
    before = line < loop.inner[0]
    counted = next((word for word in _PASS_NAMES if word in loop.target.lower()), "")
    if before and looped and counted != "epoch":
        return ROLLOUT
    if counted:
        return f"{counted} {'start' if before else 'end'}"
    return f"pass of the loop at {os.path.basename(loop.file)}:{loop.first}"
