from __future__ import annotations

import pytest

from gapless.model.wording import count, number, rate, rate_in_column, rename_steps


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (11.0, "11"), (2.5, "2.5"), (10.04, "10"), (1 / 3, "0.33"), (0.05, "0.05")]
)
def test_number(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text", "column"),
    [
        (0, "0 waits per step", "0"),
        (1, "1 wait per step", "1"),
        (2.5, "2.5 waits per step", "2.5"),
        (0.1, "1 wait every 10 steps", "1 in 10"),
        (0.3, "3 waits in 10 steps", "3 in 10"),
        (2 / 3, "2 waits in 3 steps", "2 in 3"),
        (1e-5, "1 wait every 100000 steps", "0"),
        (0.99999, "1 wait per step", "1"),
    ],
)
def test_rate(value, text, column):
    """No part of a wait is ever said."""
    assert rate(value) == text
    assert rate_in_column(value) == column
    assert rate(value, "call", "call", "a").endswith((" a call", " calls"))


@pytest.mark.parametrize(
    ("value", "text"), [(1, "1 wait"), (2, "2 waits"), (0.5, "0.5 waits"), (0, "0 waits")]
)
def test_count(value, text):
    assert count(value, "wait") == text


@pytest.mark.parametrize(
    ("text", "noun", "sentence"),
    [
        ("7 syncs in every step", "batch", "7 syncs in every batch"),
        ("no syncs in 10 training steps", "denoising step", "no syncs in 10 denoising steps"),
        ("1 sync in every step: 2 % of each step", "token", "1 sync for every token: 2 % of each token's time"),  # noqa: E501
        ("use `optimizer.step()`, --steps all", "batch", "use `optimizer.step()`, --steps all"),
        ("the stepping of steps.py:3", "batch", "the stepping of steps.py:3"),
        ("10 steady steps", "iteration", "10 iterations"),
    ],
)  # fmt: skip
def test_steps_are_called_what_they_are(text, noun, sentence):
    assert rename_steps(text, noun) == sentence
    assert rename_steps(sentence, noun) == sentence
    assert rename_steps(text, "step") == text
