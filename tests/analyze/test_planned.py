"""How many steps a run has: real loops, looked at as a running check does."""

from __future__ import annotations

import contextlib
import sys
import textwrap

import pytest

from gapless.analyze.planned import LOOKED_AT, Planner
from gapless.capture.stopping import variables
from gapless.model import Mark, SourceLine
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
            Mark(kind="optimizer", tick=count, time=0.1 * count, name="SGD.step#0", stack=tuple(stack)), count
        )
        if count == LOOKED_AT[-1]:
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
