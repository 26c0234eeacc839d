"""`Canvas`: collects rich text as a string of a given width."""

from __future__ import annotations

import io

from rich.console import Console
from rich.containers import Lines
from rich.text import Text

from gapless.render._style import Style

_MAX_TEXT_LENGTH = 1_000
"""Characters; kernel names can be longer than the rest of the report."""
_MIN_WRAP_COLUMNS = 20
"""Text is wrapped to no fewer columns: narrower ones cannot be read."""


class Canvas:
    """Writes lines as they are, wrapped, clipped to the width, or with a hanging indent."""

    def __init__(self, style: Style) -> None:
        self.style = style
        self._file = io.StringIO()
        self._console = Console(
            file=self._file,
            width=style.width,
            force_terminal=style.color is not None,
            force_jupyter=False,  # in a kernel, rich would show each line instead of writing it to the file
            color_system=style.color,  # type: ignore[arg-type]  # a name rich gave itself
            no_color=style.color is None,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
        )

    def text(self) -> str:
        """Return everything written so far."""
        return self._file.getvalue()

    def blank(self) -> None:
        self.line(Text())

    def line(self, text: Text) -> None:
        """Write one line, however long: terminals make links only of unbroken paths."""
        self._console.print(self._clean(text), soft_wrap=True)

    def wrap(self, text: Text) -> None:
        self.hang(Text(), text)

    def clip(self, text: Text) -> None:
        """Write one line, cut at the width."""
        clean = self._clean(text)
        clean.truncate(self.style.width, overflow="ellipsis" if self.style.unicode else "crop")
        self.line(clean)

    def hang(self, lead: Text, text: Text) -> None:
        """Write `lead` and `text` wrapped beside it, or below it if there is no room."""
        if self.style.width - lead.cell_len < _MIN_WRAP_COLUMNS and lead.plain.strip():
            lead.rstrip()
            self.clip(lead)
            lead = Text(" " * min(lead.cell_len - len(lead.plain.lstrip()) + 2, self.style.width // 4))
        for position, row in enumerate(self._wrap(text, lead.cell_len)):
            row.rstrip()
            self.line(Text.assemble(lead if not position else " " * lead.cell_len, row))

    def rows(self, text: Text, indent: int = 0) -> int:
        """Return how many lines `text` takes beside a lead of `indent` columns."""
        return len(self._wrap(text, indent))

    def _wrap(self, text: Text, indent: int) -> Lines:
        room = max(_MIN_WRAP_COLUMNS, self.style.width - indent)
        return self._clean(text).wrap(self._console, room, overflow="fold")

    def spread(self, left: Text, right: Text) -> None:
        """Write `left` and `right` at the two margins, on two lines if they do not fit on one."""
        left, right = self._clean(left), self._clean(right)
        if not right.plain:
            self.clip(left)
            return
        gap = self.style.width - left.cell_len - right.cell_len
        if gap >= 2:
            self.line(left + Text(" " * gap) + right)
        else:
            self.wrap(left)
            self.hang(Text(" " * max(self.style.width - right.cell_len, 4)), right)

    def place(self, lead: Text, where: str, more: str = "") -> None:
        """Write `where`, a path that is never broken, and `more` after it, or below if there is no room."""
        whole = lead + Text(where, style="not dim") + Text(more)
        if not more or self._clean(whole).cell_len <= self.style.width:
            self.line(whole)
        else:
            self.line(lead + Text(where, style="not dim"))
            self.hang(Text(" " * 4), Text(more.strip()))

    def code(self, source: str) -> Text:
        """Return `source`, a line of Python, in colours."""
        if self.style.color is None:
            return Text(source)
        from rich.syntax import Syntax  # which knows some hundred languages, one by one

        code = Syntax("", "python", theme="ansi_dark", background_color="default").highlight(source)
        code.rstrip()
        return code

    def _clean(self, text: Text) -> Text:
        """Return `text` in one line, without terminal control characters, in ASCII if the output needs it."""
        plain = text.plain if len(text) <= _MAX_TEXT_LENGTH else text.plain[: _MAX_TEXT_LENGTH - 1] + "…"
        plain = self.style.ascii("".join(c if c.isprintable() else repr(c)[1:-1] for c in plain))
        if plain == text.plain:
            return text
        return Text(plain, style=text.style)
