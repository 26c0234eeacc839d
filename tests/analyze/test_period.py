"""What the source of a loop says recurs, and expressions that are understood without running anything."""

from __future__ import annotations

import ast
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.analyze.run.loop import Loop
from gapless.analyze.run.period import UnknownValue, evaluate, pass_count, recurring

SOURCE = """\
def estimate_loss(model):
    model.eval()
    return model()

for epoch in range(3):
    sampler.set_epoch(epoch)
    for i, batch in enumerate(loader):
        step()
        if i % 10 == 0:
            print(i)
        if i % 500 == 0:
            estimate_loss(model)
        if i in wanted:
            save_checkpoint()
    with torch.no_grad():
        validate(model)
    if epoch % 5 == 4:
        torch.save(model, "m.pt")
    scheduler.advance()
"""
INNER = Loop("train.py", 7, 14, (8, 8), "(i, batch)")
OUTER = Loop("train.py", 5, 19, (7, 14), "epoch")


def test_what_recurs():
    parts = recurring((INNER, OUTER), lambda file: SOURCE)
    assert [(part.name, part.level, part.line.line, part.test is None) for part in parts] == [
        ("evaluation", 0, 11, False),
        ("evaluation", 1, 16, True),
        ("checkpoint", 1, 17, False),
        ("epoch end", 1, 19, True),
    ]


def test_a_source_that_cannot_be_read_says_nothing():
    def read(file: str) -> str:
        raise OSError

    assert recurring((INNER, OUTER), read) == ()


NAMES = {"i": 37, "n": 5, "zero": 0, "on": True, "args": SimpleNamespace(every=7), "d": {"k": 3}}
NUMBERS = st.sampled_from(
    ["i", "n", "zero", "args.every", "d['k']", "11", "(i + 1)", "(i // n)", "(i - 3 * n)"]
)
TESTS = st.builds(
    lambda left, right, op, bound: f"{left} % {right} {op} {bound}",
    NUMBERS,
    NUMBERS,
    st.sampled_from(["==", "!=", "<", ">=", ">"]),
    NUMBERS,
)


@given(st.lists(TESTS, min_size=1, max_size=3), st.sampled_from([" and ", " or "]), st.booleans())
def test_a_value_is_what_python_says(tests, joint, negated):
    text = f"not ({joint.join(tests)})" if negated else joint.join(tests)
    try:
        expected = bool(eval(text, {"__builtins__": {}}, NAMES))
    except ZeroDivisionError:
        return
    assert bool(evaluate(ast.parse(text, mode="eval").body, NAMES)) == expected


@pytest.mark.parametrize(
    "text", ["f()", "missing", "args.nothing", "d['x']", "i % zero", "[i]", "i if on else n"]
)
def test_what_needs_more_is_unknown(text):
    with pytest.raises(UnknownValue):
        evaluate(ast.parse(text, mode="eval").body, NAMES)


def test_what_is_known_of_a_condition_decides():
    assert evaluate(ast.parse("on and f()", mode="eval").body, NAMES) is True


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("range(5)", 5),
        ("range(0, i, n)", 8),
        ("enumerate(data)", 3),
        ("tqdm(data, total=9)", 3),
        ("data", 3),
        ("args.data", 2),
        ("generator", 0),
        ("range(f())", 0),
        ("load()", 0),
    ],
)
def test_lengths(text, expected):
    names = {**NAMES, "data": [1, 2, 3], "args": SimpleNamespace(data=(1, 2)), "generator": iter(())}
    assert pass_count(ast.parse(text, mode="eval").body, names) == expected
