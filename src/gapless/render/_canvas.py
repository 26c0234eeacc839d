"""`Canvas`: rich text gathered into a string of a given width."""

from __future__ import annotations

import io

from rich.console import Console
from rich.containers import Lines
from rich.text import Text

from gapless.render._style import Style

_LONG = 1_000
"""Characters of one text; names of kernels can be longer than all the rest."""
_NARROW = 20
"""Columns that text is wrapped to at the least."""


class Canvas:
    """Writes lines in four ways: as they are, wrapped, clipped to the width, or with a hanging indent."""

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
        """Everything written so far."""
        return self._file.getvalue()

    def blank(self) -> None:
        self.line(Text())

    def line(self, text: Text) -> None:
        """One line, however long: for what a terminal makes a link of."""
        self._console.print(self._clean(text), soft_wrap=True)

    def wrapped(self, text: Text) -> None:
        self.hanging(Text(), text)

    def clipped(self, text: Text) -> None:
        """One line, cut at the width."""
        clean = self._clean(text)
        clean.truncate(self.style.width, overflow="ellipsis" if self.style.unicode else "crop")
        self.line(clean)

    def hanging(self, lead: Text, text: Text) -> None:
        """`lead`, then `text` wrapped beside it; below it where beside it there is no room."""
        if self.style.width - lead.cell_len < _NARROW and lead.plain.strip():
            lead.rstrip()
            self.clipped(lead)
            lead = Text(" " * min(lead.cell_len - len(lead.plain.lstrip()) + 2, self.style.width // 4))
        for position, row in enumerate(self._wrap(text, lead.cell_len)):
            row.rstrip()
            self.line(Text.assemble(lead if not position else " " * lead.cell_len, row))

    def rows(self, text: Text, indent: int = 0) -> int:
        """How many lines `text` takes beside a lead of `indent` columns."""
        return len(self._wrap(text, indent))

    def _wrap(self, text: Text, indent: int) -> Lines:
        room = max(_NARROW, self.style.width - indent)
        return self._clean(text).wrap(self._console, room, overflow="fold")

    def spread(self, left: Text, right: Text) -> None:
        """`left` and `right` at the two margins; on a line of its own where both do not fit on one."""
        left, right = self._clean(left), self._clean(right)
        if not right.plain:
            self.clipped(left)
            return
        gap = self.style.width - left.cell_len - right.cell_len
        if gap >= 2:
            self.line(left + Text(" " * gap) + right)
        else:
            self.wrapped(left)
            self.hanging(Text(" " * max(self.style.width - right.cell_len, 4)), right)

    def place(self, lead: Text, where: str, more: str = "") -> None:
        """`where`, a path that is never broken, and `more` behind it, or below it where there is no room."""
        whole = lead + Text(where, style="not dim") + Text(more)
        if not more or self._clean(whole).cell_len <= self.style.width:
            self.line(whole)
        else:
            self.line(lead + Text(where, style="not dim"))
            self.hanging(Text(" " * 4), Text(more.strip()))

    def code(self, source: str) -> Text:
        """`source`, a line of Python, in colours."""
        if self.style.color is None:
            return Text(source)
        from rich.syntax import Syntax  # which knows some hundred languages, one by one

        code = Syntax("", "python", theme="ansi_dark", background_color="default").highlight(source)
        code.rstrip()
        return code

    def _clean(self, text: Text) -> Text:
        """`text` in one line, without what would steer the terminal, and within ASCII where it must be."""
        plain = text.plain if len(text) <= _LONG else text.plain[: _LONG - 1] + "…"
        plain = self.style.ascii("".join(c if c.isprintable() else repr(c)[1:-1] for c in plain))
        if plain == text.plain:
            return text
        return Text(plain, style=text.style)
