"""`Style`: what a renderer may use of the place its text goes to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec


class Style(msgspec.Struct, frozen=True, kw_only=True):
    """How to write.

    `width` in columns. `color` is one of rich's colour systems, or None for plain text. `unicode` tells
    whether the output can hold more than ASCII. `unfold` shows every finding in full and `frames` every
    frame of their stacks. `folder` is what paths are shown relative to. `hints` are closing words of advice.
    """

    width: int = 80
    color: str | None = None
    unicode: bool = True
    unfold: bool = False
    frames: bool = False
    folder: str = ""
    hints: tuple[str, ...] = ()

    def path(self, file: str) -> str:
        """`file` as the user would name it from `folder`."""
        if not self.folder or not os.path.isabs(file):
            return file
        try:
            return str(Path(file).relative_to(self.folder))
        except ValueError:
            return file

    def place(self, file: str, lines: str, room: int) -> str:
        """``…/data/train.py:12``: as many folders as there is room for, and always the line numbers."""
        name = self.path(file)
        while len(name) + len(lines) + 1 > room and "/" in name.removeprefix("…/"):
            name = "…/" + name.removeprefix("…/").split("/", 1)[1]
        if len(name) + len(lines) + 1 > room:
            name = f"{name[: max(room - len(lines) - 2, 1)]}…"
        return self.ascii(f"{name}:{lines}")

    def ascii(self, text: str) -> str:
        """`text` with typography replaced by ASCII where the output can hold no more."""
        if self.unicode:
            return text
        return text.translate(_PLAIN).encode("ascii", "backslashreplace").decode("ascii")

    def bar(self, share: float, room: int) -> str:
        """A bar of `share` (0 to 1) of `room` columns."""
        eighths = round(min(max(share, 0.0), 1.0) * room * 8)
        if not self.unicode:
            return "#" * round(eighths / 8)
        return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]


_PLAIN = str.maketrans(
    {
        "×": "x",
        "µ": "u",
        "│": "|",
        "…": "...",
        "·": "-",
        "–": "-",
        "—": "-",
        "’": "'",
        "→": "->",
        "≥": ">=",
        "≈": "~",
    }
)


def highest(heights: Sequence[float], room: int) -> list[float]:
    """`heights` in at most `room` columns: the highest of each stretch."""
    room = min(room, len(heights))
    cuts = [column * len(heights) // room for column in range(room + 1)] if room else []
    return [max(heights[low:high]) for low, high in pairwise(cuts)]
