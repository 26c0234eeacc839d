"""`Session`: everything that one capture recorded, in a versioned file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeVar

import msgspec

from gapless.model._disk import SavedFormat
from gapless.model.assumption import Assumption, FailedDry, Switch
from gapless.model.attempt import Attempt, Search
from gapless.model.compiled import Compiled
from gapless.model.event import Event, Site, StepMark
from gapless.model.fallback import Fallback
from gapless.model.graph_fault import GraphFault
from gapless.model.later import Later
from gapless.model.loader_use import LoaderUse
from gapless.model.memory import MemoryRun
from gapless.model.memory import check as check_memory
from gapless.model.offer import Wanted
from gapless.model.optimizer import OptimizerUse
from gapless.model.planned import Planned
from gapless.model.programme import Programme
from gapless.model.race import Race
from gapless.model.source import SourceLine, Stack


class Environment(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Versions and devices; never environment variables, which hold secrets.

    `unused`: the script put nothing on the device, so that nothing could wait for it. `dry`: the run computed
    no values.
    """

    gapless: str = ""
    python: str = ""
    torch: str = ""
    platform: str = ""
    device: str = ""
    emulated: bool = False
    unused: bool = False
    dry: bool = False
    world_size: int = 1
    rank: int = 0


class Ending(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How the script ended.

    `how`: ``finished``, ``enough-steps`` (stopped by Gapless), ``exit`` (``sys.exit``), ``error``,
    ``interrupted`` or ``not-emulated``. `status` is the script's own exit status, `where` the line at which
    it failed (``train.py:31``). `of_environment` is false if the error is a missing key that is
    no environment variable.
    """

    how: Literal["finished", "enough-steps", "exit", "error", "interrupted", "not-emulated"] = "finished"
    status: int = 0
    message: str = ""
    where: str = ""
    of_environment: bool = True

    @property
    def is_own(self) -> bool:
        """Whether the program came to its own end, by ``sys.exit()`` or without."""
        return self.how == "finished" or (self.how == "exit" and not self.status)

    @property
    def is_good(self) -> bool:
        """Whether it ended without an error, by itself or stopped by Gapless."""
        return self.is_own or self.how == "enough-steps"


class Recurrence(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A part of the training loop that recurs less often than steps: an evaluation, a rollout, an epoch's
    end.

    `every` is the interval in steps (0: unknown), `times` how often it occurred in the run, `waits` the mean
    number of waits per occurrence, `line` its place in the source.

    >>> Recurrence(name="evaluation", every=500, times=2, waits=260.0).name
    'evaluation'
    """

    name: str
    every: int = 0
    times: int = 0
    waits: float = 0.0
    line: SourceLine | None = None


class Session(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Everything that one capture recorded.

    - `sites`, `events`, `marks`: where the CPU waited, how often, and what begins or ends steps.
    - `notes`: remarks for the user (``torch.compile runs eagerly``).
    - `programme`: what the last steps requested of the device; None if not recorded.
    - `memory`: the memory requests, a run for each device.
    - `loaders`: the DataLoaders that were iterated.
    - `phases`: what recurs in the training loop by its source, reached or not.
    - `cut`: seconds since the capture began at which the script was stopped between two steps; 0 if it was
      not.
    - `unknown`: operators of which it is unknown whether the CPU waits for them.
    - `asked`: the script's lines that query which GPU it has, and so may act otherwise on another.
    - `wanted`: the GPUs to estimate the run for.
    - `search`: the search for the argument's value with which this ran; `remedies`: changes tried to make it
      fit.
    - `optimizers`: those that stepped.
    - `assumptions`: values that a dry run assumed; `switch`: where the run became one; `failed_dry`: how the
      script failed in a dry run before this one.
    - `races`: unordered accesses to the same memory; `graphs`: mistakes with CUDA graphs.
    - `compiled`: what torch.compile would make of each callable that the run compiled.
    - `what_if`: what else the report should estimate (``compile``).
    - `fallbacks`: what libraries run in place of packages that are not installed.
    - `planned`: the number of steps of the script's loops.
    - `strands`: for each numbered thread and asyncio task the number of the one that started it.
    - `later`: sums over what followed the recorded marks and events of a long run.
    """

    script: tuple[str, ...] = ()
    environment: Environment = Environment()
    ending: Ending = Ending()
    sites: tuple[Site, ...] = ()
    events: tuple[Event, ...] = ()
    marks: tuple[StepMark, ...] = ()
    notes: tuple[str, ...] = ()
    duration: float = 0.0
    programme: Programme | None = None
    memory: tuple[MemoryRun, ...] = ()
    loaders: tuple[LoaderUse, ...] = ()
    phases: tuple[Recurrence, ...] = ()
    cut: float = 0.0
    unknown: tuple[str, ...] = ()
    asked: tuple[SourceLine, ...] = ()
    wanted: Wanted | None = None
    search: Search | None = None
    remedies: tuple[Attempt, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    switch: Switch | None = None
    optimizers: tuple[OptimizerUse, ...] = ()
    failed_dry: FailedDry | None = None
    races: tuple[Race, ...] = ()
    graphs: tuple[GraphFault, ...] = ()
    compiled: tuple[Compiled, ...] = ()
    what_if: tuple[str, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    planned: Planned = Planned()
    strands: tuple[int, ...] = ()
    later: Later | None = None

    @property
    def waits(self) -> int:
        """The number of waits in the whole run."""
        return sum(event.waits for event in self.events) + (self.later.waits if self.later is not None else 0)


class _SavedSession(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A session as saved: each source line and each stack is stored once.

    `stacks` are tuples of positions in `lines`; `sites`, `marks` and `assumptions` have positions in `stacks`
    in place of their stacks, and no such field if the stack is empty.
    """

    format: str
    version: int
    lines: tuple[SourceLine, ...] = ()
    stacks: tuple[tuple[int, ...], ...] = ()
    sites: list[dict[str, Any]] = []
    marks: list[dict[str, Any]] = []
    assumptions: list[dict[str, Any]] = []
    session: Session


_STACKS = {"sites": ("stack", "forward"), "marks": ("stack",), "assumptions": ("stack",)}


class _Interner:
    """Numbers source lines and stacks, to store each once."""

    def __init__(self) -> None:
        self.lines: dict[SourceLine, int] = {}
        self.stacks: dict[tuple[int, ...], int] = {}
        self._known: dict[Stack, int] = {}

    def stack(self, stack: Stack) -> int:
        """Return the number of `stack`."""
        number = self._known.get(stack)
        if number is None:
            lines = tuple(self.lines.setdefault(line, len(self.lines)) for line in stack)
            number = self.stacks.setdefault(lines, len(self.stacks))
            self._known[stack] = number
        return number

    def rows(self, items: tuple[Any, ...], fields: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        """Yield `items` as dictionaries, with numbers in place of the stacks in `fields`."""
        for item in items:
            row = msgspec.to_builtins(msgspec.structs.replace(item, **dict.fromkeys(fields, ())))
            row.update({field: self.stack(getattr(item, field)) for field in fields if getattr(item, field)})
            yield row


def _pack(session: Session) -> dict[str, Any]:
    interner = _Interner()
    rows = {part: list(interner.rows(getattr(session, part), fields)) for part, fields in _STACKS.items()}
    own = msgspec.structs.replace(session, **dict.fromkeys(_STACKS, ()))
    return {"lines": tuple(interner.lines), "stacks": tuple(interner.stacks), "session": own, **rows}


Row = TypeVar("Row", Site, StepMark, Assumption)


def _restore(document: _SavedSession) -> Session:
    def line(position: int) -> SourceLine:
        if position < 0:
            raise IndexError("a stack refers to a line that does not exist")
        return document.lines[position]

    stacks = [tuple(line(position) for position in stack) for stack in document.stacks]

    def items(rows: list[dict[str, Any]], kind: type[Row], fields: tuple[str, ...]) -> tuple[Row, ...]:
        restored = []
        for row in rows:
            full = {field: stacks[row[field]] for field in fields if field in row}
            restored.append(msgspec.convert({**row, **full}, kind))
        return tuple(restored)

    session = msgspec.structs.replace(
        document.session,
        sites=items(document.sites, Site, _STACKS["sites"]),
        marks=items(document.marks, StepMark, _STACKS["marks"]),
        assumptions=items(document.assumptions, Assumption, _STACKS["assumptions"]),
    )
    _check(session)
    return session


_MAX_ELEMENTS = 1 << 37
"""Elements of one operator's tensors: half a terabyte, and as many kernels as can be simulated."""

_MAX_CALLS = 1 << 20
"""Consecutive waits at one place, and tensors of one operator: each is simulated as a call."""
_MIN_RATE = 1e-3
"""Smallest rate of a GPU, in any unit: times divided by it stay finite."""


def _check(session: Session) -> None:
    """Check that everything the session refers to exists.

    Raises:
        ValueError: something does not.
    """
    later = session.later.events if session.later is not None else ()
    if any(not 0 <= event.site < len(session.sites) for event in (*session.events, *later)):
        raise ValueError("an event refers to a site that does not exist")
    programme = session.programme
    for run in (*session.memory, *(programme.emptied if programme is not None else ())):
        defect = check_memory(run)
        if defect:
            raise ValueError(f"{defect} in its memory record")
    if programme is None:
        return
    rates = programme.gpu.fp32, programme.gpu.bandwidth, programme.gpu.pcie
    if programme.entries and min(rates) < _MIN_RATE:
        raise ValueError("its GPU computes or copies next to nothing")
    entries, bodies = len(programme.entries), len(programme.bodies)
    if any(not 0 <= segment.body < bodies for segment in programme.segments):
        raise ValueError("a segment refers to a body that does not exist")
    if any(body and not 0 <= min(body) <= max(body) < entries for body in programme.bodies):
        raise ValueError("a body refers to an entry that does not exist")
    if any(entry.elements > _MAX_ELEMENTS for entry in programme.entries):
        raise ValueError("an entry has more elements than a GPU can hold")
    if any(max(entry.waits, entry.tensors) > _MAX_CALLS for entry in programme.entries):
        raise ValueError("an entry waits or launches more often than can be reckoned with")
    measured = programme.calibration.operators if programme.calibration is not None else ()
    if any(operator.kernels > _MAX_CALLS for operator in measured):
        raise ValueError("an operator of its calibration launches more kernels than can be reckoned with")
    if any(entry.kind == "wait" and entry.site >= len(session.sites) for entry in programme.entries):
        raise ValueError("an entry refers to a site that does not exist")


SAVED: SavedFormat[Session, Session] = SavedFormat(
    "session", "gapless-session", 1, _SavedSession, _pack, _restore
)
"""The file format of a session."""
encode, decode, save, load = SAVED.encode, SAVED.decode, SAVED.save, SAVED.load
