"""How many steps a run has: real loops, looked at as a running check does."""

from __future__ import annotations

import contextlib
import math
import sys
import textwrap
from types import SimpleNamespace

import pytest

from gapless.analyze.run.planned import COMPARED_STEPS, Planner
from gapless.capture.stopping import variables
from gapless.model import SourceLine, StepMark
from gapless.model.planned import Planned

FILE = "/work/planned.py"


class Stopped(Exception):
    """The loops were looked at for long enough."""


def planned(script: str, batches: tuple[float, int] = (0.0, 0)) -> Planned:
    """What the loops of `script`, in which ``step()`` ends a step, say once it has run for some steps."""
    text = textwrap.dedent(script).strip("\n") + "\n"
    planner = Planner(
        lambda at: variables(at.file, at.first, at.last), lambda loop: batches, read=lambda file: text
    )
    lines, count = text.splitlines(), 0

    def step() -> None:
        nonlocal count
        count += 1
        stack, frame = [], sys._getframe(1)
        while frame is not None and frame.f_code.co_filename == FILE:
            line = SourceLine(FILE, frame.f_lineno, frame.f_code.co_name, lines[frame.f_lineno - 1].strip())
            stack.append(line)
            frame = frame.f_back
        planner(
            StepMark(kind="optimizer", tick=count, time=0.1 * count, name="SGD.step#0", stack=tuple(stack)),
            count,
        )
        if count == COMPARED_STEPS[-1]:
            raise Stopped

    with contextlib.suppress(Stopped):
        exec(compile(text, FILE, "exec"), {"step": step})
    return planner.planned


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("for i in range(500):\n    step()", Planned(steps=500)),
        (
            """
            batches = [0] * 128
            for epoch in range(20):
                for batch in batches:
                    step()
            """,
            Planned(steps=2560, passes=20),
        ),
        (  # gradients of four batches make one step
            """
            for epoch in range(3):
                for i, batch in enumerate(range(100)):
                    if (i + 1) % 4 == 0:
                        step()
            """,
            Planned(steps=75, passes=3),
        ),
        (  # a limit of all steps, however many passes that takes
            """
            done = 0
            for epoch in range(10 ** 9):
                for batch in [0] * 128:
                    step()
                    done += 1
                    if done >= 1000:
                        break
                if done >= 1000:
                    break
            """,
            Planned(steps=1000),
        ),
        (  # a limit of each pass
            """
            for epoch in range(20):
                for i, batch in enumerate(range(128)):
                    if i >= 50:
                        break
                    step()
            """,
            Planned(steps=1000, passes=20),
        ),
        (
            """
            done = 0
            while done < 300:
                step()
                done += 1
            """,
            Planned(steps=300),
        ),
        (  # it may stop early, at any time
            """
            def stale(): return False
            for i in range(500):
                step()
                if stale():
                    break
            """,
            Planned(steps=500, most=True),
        ),
        (
            """
            def train(epochs):
                for epoch in range(epochs):
                    one(epoch)
            def one(epoch):
                for batch in range(30):
                    step()
            train(2)
            """,
            Planned(steps=60, passes=2),
        ),
        ("while True:\n    step()", Planned()),
        ("for i in range(10 ** 12):\n    step()", Planned()),
        ("for item in iter(int, 1):\n    step()", Planned()),
        ("\n".join(["step()"] * 5), Planned()),
    ],
)
def test_steps_follow_from_the_loops(script, expected):
    assert planned(script) == expected


def test_a_loader_says_how_long_a_pass_is():
    script = """
    def batches():
        while True:
            yield 0
    for epoch in range(5):
        for batch in batches():
            step()
    """
    assert planned(script).steps == 0
    # The DataLoader says so for the loop that goes through it; the loop around says it of itself.
    assert planned(script, (1.0, 40)) == Planned(steps=200, passes=5)


class Settings(SimpleNamespace):
    """An object of a library: what is stored in it may be looked at."""


def fit_loop(own_steps: bool = False, **changed: float) -> Settings:
    """Lightning's loop through epochs, with what its trainer has set in it."""
    numbers = {"max_batches": 10, "max_epochs": 4, "max_steps": -1, "together": 1, **changed}
    module = Settings(_automatic_optimization=not own_steps)
    return Settings(
        max_batches=numbers["max_batches"],
        max_epochs=numbers["max_epochs"],
        epoch_loop=Settings(max_steps=numbers["max_steps"]),
        trainer=Settings(
            accumulate_grad_batches=numbers["together"], strategy=Settings(_lightning_module=module)
        ),
    )


@pytest.mark.parametrize(
    ("loop", "steps"),
    [
        (fit_loop(), 40),
        (fit_loop(together=4), 12),  # the last batches of an epoch make a step, too
        (fit_loop(max_steps=25), 25),
        (fit_loop(max_steps=100), 40),
        (fit_loop(max_epochs=-1, max_steps=25), 25),
        (fit_loop(max_epochs=-1), 0),
        (fit_loop(max_batches=math.inf), 0),
        (fit_loop(own_steps=True), 0),
        (Settings(), 0),
    ],
)
def test_a_lightning_trainer_says_how_many_steps_it_makes(loop, steps):
    source = "class FitLoop:\n    def run(self):\n        while not self.done:\n            self.advance()\n"
    stack = (SourceLine("/lib/fit_loop.py", 4, "FitLoop.run", "self.advance()", library="lightning"),)
    planner = Planner(lambda at: {"self": loop}, read=lambda file: source)
    for count in range(1, COMPARED_STEPS[-1] + 1):
        planner(
            StepMark(kind="optimizer", tick=count, time=0.1 * count, name="SGD.step#0", stack=stack), count
        )
    assert planner.planned == Planned(steps=steps)
