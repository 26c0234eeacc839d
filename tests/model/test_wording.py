from __future__ import annotations

import pytest

from gapless.model.wording import count, number


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (11.0, "11"), (2.5, "2.5"), (10.04, "10"), (1 / 3, "0.33"), (0.05, "0.05")]
)
def test_number(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(1, "1 wait"), (2, "2 waits"), (0.5, "0.5 waits"), (0, "0 waits")]
)
def test_count(value, text):
    assert count(value, "wait") == text
