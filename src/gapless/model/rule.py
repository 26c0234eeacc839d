"""`Rule` and its kinds: a pattern that makes someone wait. The class docstring is its documentation."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

import msgspec

from gapless.model.compiled import Compiled
from gapless.model.event import Site
from gapless.model.graph_fault import GraphFault
from gapless.model.loader_use import LoaderUse
from gapless.model.memory_report import MemoryReport
from gapless.model.optimizer import OptimizerUse
from gapless.model.profile import Profile
from gapless.model.race import Race
from gapless.model.ranks import Ranks

LIBRARY_PRIORITY = 90
"""Priority from which rules know the library that waits."""

NOTHING = "nothing to change"
"""Beginning of a change that is none: it is not listed among the things to do."""

FINE = "fine if it happens once: it needs a change only in a loop"
"""The remedy of a sync outside the training loop."""

SECTIONS = ("What waits", "Why it costs", "Example", "Use instead", "When it is fine")

Reach = Literal["value", "function", "class"]


class Hit(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A pattern found at a place or (without `site`) in the whole subject of the report.

    - `evidence`: sentences with the numbers that show it, without a full stop, the strongest first.
    - `change`: the remedy in a few words, if more specific than the rule's own.
    - `idle`, `blocked`: idle time of the GPU and time of the CPU that go with it, in nanoseconds over all
      steps.
    - `calls`: how often it happened; `steps`: in how many steps; `every`: the interval in steps.
    - `saves`: the most that a step does needlessly, in nanoseconds of the GPU.
    - `start`, `end`: where to look in a viewer.
    """

    evidence: tuple[str, ...]
    remedy: str
    change: str = ""
    site: Site | None = None
    idle: int = 0
    blocked: int = 0
    saves: int = 0
    calls: int = 0
    bytes: int = 0
    steps: int = 0
    every: int = 1
    start: int = 0
    end: int = 0
    rank: int = -1


class Rule:
    """A pattern with a code, a name, an explanation, a remedy and a check.

    A subclass sets `code` (``GAP110``), `name` (the forbidden pattern, in kebab case), `advice` and `change`,
    and writes a docstring of one summary line and the five `SECTIONS` as headings followed by text. What it
    looks at is its kind: `WaitRule`, `ProfileRule`, `RanksRule`, `MemoryRule`, `LoaderRule`, `RaceRule` or
    `GraphRule`, `CompiledRule` or `OptimizerRule`, or several of them for a pattern that shows in several
    ways.
    """

    code: ClassVar[str] = ""
    name: ClassVar[str] = ""
    advice: ClassVar[str] = ""
    """One or two sentences: what to write instead, in general."""
    change: ClassVar[str] = ""
    """The advice in a few words, an action in the imperative: what stands in a list of things to do."""

    @classmethod
    def summary(cls) -> str:
        """Return the first line of the documentation."""
        return inspect.cleandoc(cls.__doc__ or "").split("\n", 1)[0].strip()

    @classmethod
    def sections(cls) -> dict[str, str]:
        """Return the documentation by section, in order."""
        texts: dict[str, list[str]] = {}
        current: list[str] | None = None
        for line in inspect.cleandoc(cls.__doc__ or "").splitlines():
            if line.startswith("## "):
                current = texts.setdefault(line[3:].strip(), [])
            elif current is not None:
                current.append(line)
        return {title: "\n".join(text).strip() for title, text in texts.items()}


class WaitRule(Rule):
    """A sync: the CPU waits for the GPU at a site.

    Rules are asked in order of `priority`, highest first, then by code; the first match names the sync.
    Patterns of a known library (14x) use 100, ordinary ones 50, catch-alls 0.
    """

    priority: ClassVar[int] = 50
    reach: ClassVar[Reach] = "value"
    """One change mends syncs of the same remedy, or all of this rule in a function, or in a class."""
    leaves: ClassVar[int] = 0
    """Syncs that `change` leaves in each phase: what is read there many times is read once, at its end."""

    def matches(self, site: Site) -> bool:
        """Whether the sync at `site` is this pattern."""
        raise NotImplementedError

    def remedy(self, site: Site) -> str:
        """Return what to write instead at `site`, using the user's own code where possible."""
        return self.advice

    def known_change(self, site: Site) -> str:
        """Return a more specific change for `site` than `change`, or ""."""
        return ""

    def remedy_together(self, sites: Sequence[Site]) -> str:
        """Return one change for syncs of the rule on one line or in a row of lines; "" if there is none."""
        return ""

    def change_at(self, site: Site) -> str:
        """Return what to do at `site`, in a few words.

        Where a library waits below the user's line, only rules for libraries know what can be changed.
        """
        specific, frame = self.known_change(site), site.deciding_frame
        if specific or frame is None or self.priority >= LIBRARY_PRIORITY:
            return specific or self.change
        function = frame.function.rpartition(".")[2]
        return f"call `{function}` of {frame.library} less often"

    def mended_with(self, site: Site) -> tuple[str, ...]:
        """Return a key of the change that fixes `site`: syncs of one rule with equal keys are fixed together.

        A sync and its line's backward share a key, and so do several reads of one value.

        >>> from gapless.model import SourceLine
        >>> from gapless.rules import rule
        >>> line = SourceLine("train.py", 7, "Trainer.step", "total += loss.item()")
        >>> site = Site(operator="aten::_local_scalar_dense", mechanism="read", stack=(line,))
        >>> rule("GAP101").mended_with(site)
        ('train.py', 'Trainer.step', 'read the value at the end, not in each step')
        """
        remedy = self.remedy(site) if self.reach == "value" else self.change_at(site)
        line = site.line
        if line is None:
            return site.operator, site.call, site.node, remedy
        return line.file, _within(line.function, self.reach), remedy


class ProfileRule(Rule):
    """A pattern in the profile of one process other than syncs, which are for a `WaitRule`."""

    def of_profile(self, profile: Profile) -> Iterable[Hit]:
        """Yield where the pattern occurs in `profile`."""
        raise NotImplementedError

    def beside(self, hit: Hit, ranks: Ranks) -> Hit:
        """Return `hit` with what the profiles of other ranks add."""
        return hit


class RanksRule(Rule):
    """A pattern that shows only in a comparison of several ranks' profiles."""

    def of_ranks(self, ranks: Ranks) -> Iterable[Hit]:
        """Yield where the pattern occurs between the ranks of one run."""
        raise NotImplementedError


class MemoryRule(Rule):
    """A pattern in a run's requests to the GPU's memory."""

    def of_memory(self, memory: MemoryReport) -> Iterable[Hit]:
        """Yield where the pattern occurs in a run's memory requests."""
        raise NotImplementedError


class LoaderRule(Rule):
    """A pattern in how a loader feeds a run."""

    def of_loader(self, use: LoaderUse) -> Iterable[Hit]:
        """Yield where the pattern occurs in how a loader feeds a run."""
        raise NotImplementedError


class OptimizerRule(Rule):
    """A pattern in how an optimizer handles its parameters."""

    def of_optimizer(self, use: OptimizerUse) -> Iterable[Hit]:
        """Yield where the pattern occurs in an optimizer's steps."""
        raise NotImplementedError


class RaceRule(Rule):
    """A race: two accesses to the same memory that nothing orders."""

    def of_race(self, race: Race) -> Hit | None:
        """Return the hit for `race`; None if it is not this pattern."""
        raise NotImplementedError


class GraphRule(Rule):
    """A mistake with a CUDA graph: the capture is refused, or replays do not do what the script intends."""

    def of_graph(self, fault: GraphFault) -> Hit | None:
        """Return the hit for `fault`; None if it is not this pattern."""
        raise NotImplementedError


class CompiledRule(Rule):
    """A pattern in what torch.compile makes of a callable."""

    def of_compiled(self, compiled: Compiled) -> Iterable[Hit]:
        """Yield where the pattern occurs in `compiled`."""
        raise NotImplementedError


def _within(function: str, reach: Reach) -> str:
    """Return the function, or for a method the class: ``Matcher`` for
    ``Matcher.forward.<locals>.<lambda>``."""
    while (cut := function.rfind(".<locals>.<")) >= 0:
        function = function[:cut]
    above = function.rpartition(".")[0]
    return above if reach == "class" and above and not above.endswith("<locals>") else function
