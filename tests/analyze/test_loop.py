"""The training loop, found in the source that step marks point into."""

from __future__ import annotations

import textwrap

import pytest
from sessions import line

from gapless.analyze.run.loop import training_loops
from gapless.files.input import source_text
from gapless.model import StepMark

FILE = "/work/train.py"


def source_of(text: str):
    """A script, and the numbers of its lines by the word in the comment at their end."""
    text = textwrap.dedent(text).lstrip("\n")
    numbers = {row.rsplit("# ", 1)[1]: n for n, row in enumerate(text.splitlines(), 1) if "# " in row}
    rows = text.splitlines()
    return text, numbers, rows


def loop_of(text: str, *calls: str, outer: dict[str, str] | None = None):
    """The loop of a script in which marks fall at the lines named `calls`: ``step``, or ``backward``…"""
    text, numbers, rows = source_of(text)

    def stack(name: str):
        inner = line(numbers[name], FILE, "f", rows[numbers[name] - 1].strip())
        caller = (outer or {}).get(name)
        return (inner,) if caller is None else (inner, line(numbers[caller], FILE, "main"))

    marks = [
        StepMark(
            kind="optimizer" if name.startswith("step") else "backward", tick=0, time=0.0, stack=stack(name)
        )
        for name in calls
    ]
    loop = next(
        iter(training_loops([m for m in marks if m.kind == "optimizer"], marks, lambda file: text)), None
    )
    if loop is None:
        return None
    return next(name for name, number in numbers.items() if number == loop.first)


EPOCHS = """
    for epoch in range(3):  # epochs
        model.train()
        for batch in loader:  # batches
            loss.backward()  # backward
            optimizer.step()  # step
        evaluate()
"""
ACCUMULATING = """
    while True:  # steps
        for micro in range(4):  # micro
            loss.backward()  # backward
        optimizer.step()  # step
"""
SEVERAL = """
    for batch in loader:  # batches
        loss.backward()  # backward
        for optimizer in optimizers:  # optimizers
            optimizer.step()  # step
"""
TWO_LINES = """
    for batch in loader:  # batches
        loss.backward()  # backward
        if last:
            optimizer.step()  # step a
        else:
            optimizer.step()  # step b
"""
FUNCTION = """
    def train_step(batch):
        for again in range(1):  # inside
            pass
        loss.backward()  # backward
        optimizer.step()  # step
    for epoch in range(2):  # epochs
        for batch in loader:  # batches
            train_step(batch)  # call
"""
NO_LOOP = """
    for batch in loader:  # preparing
        prepare(batch)
    loss.backward()  # backward
    optimizer.step()  # step
"""
NESTED = """
    for trial in range(2):  # trials
        def run():
            loss.backward()  # backward
            optimizer.step()  # step
"""

CASES = {
    "batches in epochs": (EPOCHS, ("backward", "step"), "batches"),
    "gradient accumulation": (ACCUMULATING, ("backward", "step"), "steps"),
    "a loop over optimizers": (SEVERAL, ("backward", "step"), "batches"),
    "two lines that step": (TWO_LINES, ("backward", "step a", "step b"), "batches"),
    "no loop": (NO_LOOP, ("backward", "step"), None),
    "a function defined in a loop": (NESTED, ("backward", "step"), None),
    "no step": (EPOCHS, ("backward",), None),
    "no backward": (EPOCHS, ("step",), "batches"),
}


@pytest.mark.parametrize(("text", "calls", "expected"), CASES.values(), ids=CASES)
def test_training_loop(text, calls, expected):
    assert loop_of(text, *calls, *calls) == expected


def test_a_step_in_a_function_of_its_own():
    calls = ("backward", "step") * 2
    assert loop_of(FUNCTION, *calls, outer={"backward": "call", "step": "call"}) == "batches"


def marks_at(number: int, code: str = ""):
    return [StepMark(kind="optimizer", tick=0, time=0.0, stack=(line(number, FILE, "f", code),))]


def test_source_that_changed_since_is_not_believed():
    marks = marks_at(5, "something_else()")
    assert training_loops(marks, marks, lambda file: textwrap.dedent(EPOCHS).strip()) == ()


@pytest.mark.parametrize("number", [-9, -1, 0, 99])
def test_a_line_that_is_none_of_the_file_is_not_believed(number):
    marks = marks_at(number, "optimizer.step()")
    assert training_loops(marks, marks, lambda file: "") == ()


@pytest.mark.parametrize("error", [OSError, SyntaxError, UnicodeDecodeError("utf-8", b"", 0, 1, "")])
def test_source_that_cannot_be_read(error):
    def read(file: str) -> str:
        raise error

    marks = marks_at(5)
    assert training_loops(marks, marks, read) == ()


def test_source_is_read_in_its_own_encoding(tmp_path):
    path = tmp_path / "latin.py"
    path.write_bytes("# -*- coding: latin-1 -*-\nx = 'é'\n".encode("latin-1"))
    assert "é" in source_text(str(path))
