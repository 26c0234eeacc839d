"""Clean texts from outside for a page: no invisible or bidirectional characters, no home folders."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import msgspec

from gapless.render._style import Style

MAX_TEXT_LENGTH = 1_000
"""Characters shown of one text; template kernels have names of ten thousand."""

_BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_INVISIBLE = {
    **{code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"},
    127: "\u2421",
    **{code: f"⟨{code:X}⟩" for code in range(0x80, 0xA0)},
    **{ord(sign): f"⟨{ord(sign):X}⟩" for sign in _BIDI},
    # Noncharacters: HTML parsers report them as errors.
    **{code: f"⟨{code:X}⟩" for code in (*range(0xFDD0, 0xFDF0), 0xFFFE, 0xFFFF, 0xFEFF)},
}
_HOMES = re.compile(r"(?:/home|/Users)/[^/\s:'\"]+|/root(?=/)|[A-Za-z]:\\Users\\[^\\\s:'\"]+")


class Clean:
    """Cleans texts: paths become relative to `style.folder` and homes ``~``, unless `style.frames` is set."""

    def __init__(self, style: Style) -> None:
        self._style = style
        self._folder = style.folder.rstrip("/\\") + os.sep if style.folder.strip("/\\") else ""
        home = str(Path("~").expanduser())
        self._home = home if len(home) > 1 and home != "~" else ""

    def __call__(self, text: str) -> str:
        """Return `text` with invisible characters spelled out, cut at `MAX_TEXT_LENGTH`."""
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
        if self._folder and not self._style.frames:
            text = text.replace(self._folder, "")
        text = visible(self.hide_homes(text))
        return (
            text if len(text) <= MAX_TEXT_LENGTH else f"{text[:MAX_TEXT_LENGTH]}… ({len(text):,} characters)"
        )

    def hide_homes(self, text: str) -> str:
        """Replace home folders in `text` by ``~``, unless `style.frames` is set."""
        if self._style.frames:
            return text
        if self._home:
            text = re.sub(re.escape(self._home) + r"(?=[/\\]|$)", "~", text)
        return _HOMES.sub("~", text)

    def path(self, file: str) -> str:
        """Return the path of `file` as shown."""
        return self(self._style.path(file))

    def clean_all(self, value: Any) -> Any:
        """Clean all text within `value`; structs become dictionaries."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, msgspec.Struct):
            return {field: self.clean_all(getattr(value, field)) for field in value.__struct_fields__}
        if isinstance(value, dict):
            return {self(key): self.clean_all(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            if value and isinstance(value[0], int) and isinstance(value[-1], int):
                return value  # columns of numbers
            return [self.clean_all(item) for item in value]
        return value


def visible(text: str) -> str:
    """Return `text` with control and bidirectional characters spelled out."""
    return text.translate(_INVISIBLE)
