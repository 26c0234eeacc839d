"""`Style`: what the output can show, and how much to write."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec


class Style(msgspec.Struct, frozen=True, kw_only=True):
    """How to render a report.

    `width` in columns. `color` is one of rich's colour systems, or None for plain text. `unicode` says
    whether the output can hold more than ASCII. `unfold` shows every finding in full, `frames` every frame of
    their stacks. Paths are shown relative to `folder`. `hints` are advice to close with.
    """

    width: int = 80
    color: str | None = None
    unicode: bool = True
    unfold: bool = False
    frames: bool = False
    folder: str = ""
    hints: tuple[str, ...] = ()

    def path(self, file: str) -> str:
        """Return `file` relative to `folder` if it is inside, else unchanged."""
        if not self.folder or not os.path.isabs(file):
            return file
        try:
            return str(Path(file).relative_to(self.folder))
        except ValueError:
            return file

    def place(self, file: str, lines: str, room: int) -> str:
        """Return ``…/data/train.py:12`` within `room` columns: folders are cut, line numbers never."""
        name = self.path(file)
        while len(name) + len(lines) + 1 > room and "/" in name.removeprefix("…/"):
            name = "…/" + name.removeprefix("…/").split("/", 1)[1]
        if len(name) + len(lines) + 1 > room:
            name = f"{name[: max(room - len(lines) - 2, 1)]}…"
        return self.ascii(f"{name}:{lines}")

    def ascii(self, text: str) -> str:
        """Return `text` with other characters replaced if the output can only hold ASCII."""
        if self.unicode:
            return text
        return text.translate(_PLAIN).encode("ascii", "backslashreplace").decode("ascii")

    def bar(self, share: float, room: int) -> str:
        """Draw a bar that fills `share` (0 to 1) of `room` columns."""
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
    """Reduce `heights` to at most `room` values: the maximum of each group of neighbours."""
    room = min(room, len(heights))
    cuts = [column * len(heights) // room for column in range(room + 1)] if room else []
    return [max(heights[low:high]) for low, high in pairwise(cuts)]
