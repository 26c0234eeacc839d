"""Text of strangers made fit for a page: nothing invisible, nothing that turns it around, no one's home."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import msgspec

from gapless.render._style import Style

LONGEST = 1_000
"""Characters that are shown of one text; kernels of templates have names of ten thousand."""

_BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_INVISIBLE = {
    **{code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"},
    127: "\u2421",
    **{code: f"⟨{code:X}⟩" for code in range(0x80, 0xA0)},
    **{ord(sign): f"⟨{ord(sign):X}⟩" for sign in _BIDI},
    # Not characters at all: parsers complain of them.
    **{code: f"⟨{code:X}⟩" for code in (*range(0xFDD0, 0xFDF0), 0xFFFE, 0xFFFF, 0xFEFF)},
}
_HOMES = re.compile(r"(?:/home|/Users)/[^/\s:'\"]+|/root(?=/)|[A-Za-z]:\\Users\\[^\\\s:'\"]+")


class Clean:
    """Texts as they are shown. Paths are told from `style.folder`, and homes as ``~`` unless asked for."""

    def __init__(self, style: Style) -> None:
        self._style = style
        self._folder = style.folder.rstrip("/\\") + os.sep if style.folder.strip("/\\") else ""
        home = str(Path("~").expanduser())
        self._home = home if len(home) > 1 and home != "~" else ""

    def __call__(self, text: str) -> str:
        """`text` with what cannot be seen spelled out, and cut where it is far too long."""
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
        if self._folder and not self._style.frames:
            text = text.replace(self._folder, "")
        text = visible(self.homes(text))
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text):,} characters)"

    def homes(self, text: str) -> str:
        """`text` without anyone's home folder, unless every frame was asked for."""
        if self._style.frames:
            return text
        if self._home:
            text = re.sub(re.escape(self._home) + r"(?=[/\\]|$)", "~", text)
        return _HOMES.sub("~", text)

    def path(self, file: str) -> str:
        """A file's name as it is shown."""
        return self(self._style.path(file))

    def whole(self, value: Any) -> Any:
        """`value`, and all text within it."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, msgspec.Struct):
            return {field: self.whole(getattr(value, field)) for field in value.__struct_fields__}
        if isinstance(value, dict):
            return {self(key): self.whole(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            if value and isinstance(value[0], int) and isinstance(value[-1], int):
                return value  # columns of numbers
            return [self.whole(item) for item in value]
        return value


def visible(text: str) -> str:
    """`text` with control characters and marks of direction spelled out."""
    return text.translate(_INVISIBLE)
