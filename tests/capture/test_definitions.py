"""A script that only defines things is told apart from one that does something."""

from __future__ import annotations

from pathlib import Path

import pytest

from gapless.capture.definitions import describe_definitions_only

DEFINED = "it only defines {}, and calls nothing"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import torch\ndef train():\n    pass\n", DEFINED.format("`train`")),
        (
            "class A: pass\nclass B: pass\nX = 3\ndef c(): pass\ndef d(): pass\n",
            DEFINED.format("`A`, `B`, `c` and 1 more"),
        ),
        (
            "try:\n    import apex\nexcept ImportError:\n    apex = None\ndef f(): pass\n",
            DEFINED.format("`f`"),
        ),
        ("if 3 > 2:\n    def f(): pass\n", DEFINED.format("`f`")),
        ('"""Text."""\nNAME = "x"\n', "it only sets names"),
        ("", "it is empty"),
        ("def train():\n    pass\ntrain()\n", ""),
        ('def f(): pass\nif __name__ == "__main__":\n    f()\n', ""),
        ("for _ in range(2):\n    pass\n", ""),
        ("def f(:\n", ""),
    ],
)
def test_what_a_script_defines(text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(text)
    assert describe_definitions_only(str(path)) == expected
