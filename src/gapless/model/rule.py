"""`Rule`: one pattern that makes someone wait. The class docstring is the rule's documentation."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import ClassVar

import msgspec

from gapless.model.event import Site
from gapless.model.loader_use import LoaderUse
from gapless.model.memory import MemoryReport
from gapless.model.profile import Profile

SECTIONS = ("What waits", "Why it costs", "Example", "Use instead", "When it is fine")


class Hit(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A pattern met in a profile, at a place or (without `site`) in the whole of it.

    `evidence` are sentences with the numbers that show it, without a full stop, the strongest first. `idle`
    is the idleness of the device that goes with it and `blocked` the time of the host, nanoseconds over all
    steps; `calls` how often it happened and `steps` in how many steps. `start` and `end` are where to look.
    """

    evidence: tuple[str, ...]
    remedy: str
    site: Site | None = None
    idle: int = 0
    blocked: int = 0
    calls: int = 0
    bytes: int = 0
    steps: int = 0
    start: int = 0
    end: int = 0
    rank: int = -1


class Rule:
    """A pattern with a code, a name, an explanation, a remedy and a check.

    A subclass sets `code` (``GAP110``) and `name` (the forbidden pattern, in kebab case), writes a
    docstring of one summary line and the five `SECTIONS` as headings followed by text, and defines one of

    - `matches` and, where a line of advice can be made concrete, `remedy`: a wait of the host at a site;
    - `find`: a pattern in the profile of one process;
    - `of_memory`: a pattern in what a run asked of the GPU's memory;
    - `of_loader`: a pattern in how a run was fed by one of its loaders;
    - `across`: one that shows only where the profiles of several ranks stand side by side.

    Rules of waits are asked in order of `priority`, highest first, then by code; the first match names the
    finding. Patterns of a known library (14x) use 100, ordinary ones 50, catch-alls 0.
    """

    code: ClassVar[str] = ""
    name: ClassVar[str] = ""
    priority: ClassVar[int] = 50
    advice: ClassVar[str] = ""
    """One or two sentences: what to write instead, in general."""
    change: ClassVar[str] = ""
    """The advice in a few words, an action in the imperative: what stands in a list of things to do."""

    def matches(self, site: Site) -> bool:
        """Whether the wait at `site` is this pattern."""
        return False

    def remedy(self, site: Site) -> str:
        """What to write instead at `site`; the user's own code in it where that can be derived."""
        return self.advice

    def find(self, profile: Profile) -> Iterable[Hit]:
        """Where the pattern is in `profile`; waits of the host are not its business but that of `matches`."""
        return ()

    def across(self, profiles: Sequence[Profile]) -> Iterable[Hit]:
        """Where the pattern is between the ranks of one run (two or more)."""
        return ()

    def of_memory(self, memory: MemoryReport) -> Iterable[Hit]:
        """Where the pattern is in what a run did with the GPU's memory."""
        return ()

    def of_loader(self, use: LoaderUse) -> Iterable[Hit]:
        """Where the pattern is in how a loader fed a run."""
        return ()

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
