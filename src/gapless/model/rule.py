"""`Rule`: one pattern that makes someone wait. The class docstring is the rule's documentation."""

from __future__ import annotations

import inspect
from typing import ClassVar

from gapless.model.event import Site

SECTIONS = ("What waits", "Why it costs", "Example", "Use instead", "When it is fine")


class Rule:
    """A pattern with a code, a name, an explanation, a remedy and a check.

    A subclass sets `code` (``GAP110``) and `name` (the forbidden pattern, in kebab case), writes a
    docstring of one summary line and the five `SECTIONS` as headings followed by text, and defines
    `matches` and, where a line of advice can be made concrete, `remedy`.

    Rules are asked in order of `priority`, highest first, then by code; the first match names the
    finding. Patterns of a known library (14x) use 100, ordinary ones 50, catch-alls 0.
    """

    code: ClassVar[str] = ""
    name: ClassVar[str] = ""
    priority: ClassVar[int] = 50
    advice: ClassVar[str] = ""
    """One or two sentences: what to write instead, in general."""

    def matches(self, site: Site) -> bool:
        """Whether the wait at `site` is this pattern."""
        raise NotImplementedError

    def remedy(self, site: Site) -> str:
        """What to write instead at `site`; the user's own code in it where that can be derived."""
        return self.advice

    @classmethod
    def summary(cls) -> str:
        """The first line of the documentation."""
        return inspect.cleandoc(cls.__doc__ or "").split("\n", 1)[0].strip()

    @classmethod
    def sections(cls) -> dict[str, str]:
        """The documentation by section, in order."""
        found: dict[str, list[str]] = {}
        current: list[str] | None = None
        for line in inspect.cleandoc(cls.__doc__ or "").splitlines():
            if line.startswith("## "):
                current = found.setdefault(line[3:].strip(), [])
            elif current is not None:
                current.append(line)
        return {title: "\n".join(text).strip() for title, text in found.items()}
