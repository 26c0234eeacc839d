"""`Session`: everything one capture saved, versioned on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Literal, TypeVar

import msgspec

from gapless.errors import UnreadableInput
from gapless.model._disk import read_whole, write_whole
from gapless.model.event import Event, Mark, Site
from gapless.model.loader_use import LoaderUse
from gapless.model.memory import MemoryRun
from gapless.model.programme import Programme
from gapless.model.source import SourceLine, Stack

FORMAT = "gapless-session"
VERSION = 1


class Environment(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Versions and devices; never environment variables, which hold secrets.

    `unused` says that the script put nothing on the device, so that nothing could wait for it.
    """

    gapless: str = ""
    python: str = ""
    torch: str = ""
    platform: str = ""
    device: str = ""
    emulated: bool = False
    unused: bool = False
    world_size: int = 1
    rank: int = 0


class Ending(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How the script ended.

    `how`: ``finished``, ``enough-steps`` (stopped by Gapless), ``exit`` (``sys.exit``), ``error``,
    ``interrupted`` or ``not-emulated``. `status` is the exit status the script itself asked for.
    """

    how: Literal["finished", "enough-steps", "exit", "error", "interrupted", "not-emulated"] = "finished"
    status: int = 0
    message: str = ""


class Recurrence(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A part of the training loop that recurs less often than steps do: an evaluation, a rollout, an epoch's
    end.

    `every` is the number of steps from one to the next (0: not known), `times` how many were seen in the run,
    `waits` how many syncs each of them had in the mean, and `line` where it is in the source.

    >>> Recurrence(name="evaluation", every=500, times=2, waits=260.0).name
    'evaluation'
    """

    name: str
    every: int = 0
    times: int = 0
    waits: float = 0.0
    line: SourceLine | None = None


class Session(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What one capture saw. `notes` are remarks for the user (``torch.compile runs eagerly``).

    `programme` is what the last steps asked of the device, where it was recorded; `memory` what
    was asked of each device's memory. `loaders` are the DataLoaders that were gone through, and `phases` what
    the source of the training loop says recurs in it, reached or not. `cut` is when the script was stopped
    between two steps, in seconds since the capture began; 0 where it was stopped at a step, or not at all.
    Whether the `unknown` operators make the CPU wait is not known.
    """

    script: tuple[str, ...] = ()
    environment: Environment = Environment()
    ending: Ending = Ending()
    sites: tuple[Site, ...] = ()
    events: tuple[Event, ...] = ()
    marks: tuple[Mark, ...] = ()
    notes: tuple[str, ...] = ()
    duration: float = 0.0
    programme: Programme | None = None
    memory: tuple[MemoryRun, ...] = ()
    loaders: tuple[LoaderUse, ...] = ()
    phases: tuple[Recurrence, ...] = ()
    cut: float = 0.0
    unknown: tuple[str, ...] = ()


class _Head(msgspec.Struct):
    format: str = ""
    version: int = 0


class _Document(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A session on disk: each source line and each stack is named once.

    A stack is a tuple of positions in `lines`; where the model has a stack, the disk has a position in
    `stacks`, and nothing where the stack is empty. Everything else is the model's own, field by field.
    """

    format: str
    version: int
    lines: tuple[SourceLine, ...] = ()
    stacks: tuple[tuple[int, ...], ...] = ()
    sites: list[dict[str, Any]] = []
    marks: list[dict[str, Any]] = []
    session: Session


_STACKS = {"sites": ("stack", "forward"), "marks": ("stack",)}


class _Interner:
    def __init__(self) -> None:
        self.lines: dict[SourceLine, int] = {}
        self.stacks: dict[tuple[int, ...], int] = {}
        self._known: dict[Stack, int] = {}

    def stack(self, stack: Stack) -> int:
        number = self._known.get(stack)
        if number is None:
            lines = tuple(self.lines.setdefault(line, len(self.lines)) for line in stack)
            number = self.stacks.setdefault(lines, len(self.stacks))
            self._known[stack] = number
        return number

    def rows(self, items: tuple[Any, ...], fields: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        for item in items:
            row = msgspec.to_builtins(msgspec.structs.replace(item, **dict.fromkeys(fields, ())))
            row.update({field: self.stack(getattr(item, field)) for field in fields if getattr(item, field)})
            yield row


def encode(session: Session) -> bytes:
    """`session` as JSON bytes; :func:`decode` gives an equal one back."""
    interner = _Interner()
    rows = {part: list(interner.rows(getattr(session, part), fields)) for part, fields in _STACKS.items()}
    document = _Document(
        format=FORMAT,
        version=VERSION,
        lines=tuple(interner.lines),
        stacks=tuple(interner.stacks),
        session=msgspec.structs.replace(session, sites=(), marks=()),
        **rows,
    )
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        # Arguments and paths may hold bytes that are not text; JSON cannot, so they are spelled out.
        return msgspec.json.encode(_spelled(msgspec.to_builtins(document)))


def _spelled(value: Any) -> Any:
    """`value` with what UTF-8 cannot hold written as escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {key: _spelled(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(item) for item in value]
    return value


def decode(data: bytes, name: str = "session") -> Session:
    """The session in `data`; `name` stands for it in messages.

    Raises:
        UnreadableInput: `data` is not a session, or of a version this Gapless does not know.
    """
    try:
        head = msgspec.json.decode(data, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableInput(f"{name} is not a Gapless session: {error}") from None
    if head.format != FORMAT:
        raise UnreadableInput(f'{name} is JSON but not a Gapless session (no "format": "{FORMAT}")')
    if not 1 <= head.version <= VERSION:
        raise UnreadableInput(
            f"{name} is a session of version {head.version}; this Gapless reads up to {VERSION}: upgrade it"
        )
    try:
        return _restore(msgspec.json.decode(data, type=_Document))
    except (msgspec.DecodeError, UnicodeDecodeError, IndexError, TypeError) as error:
        raise UnreadableInput(f"{name} is a damaged session: {error}") from None


Row = TypeVar("Row", Site, Mark)


def _restore(document: _Document) -> Session:
    def line(position: int) -> SourceLine:
        if position < 0:
            raise IndexError("a stack names a line that is not there")
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
        marks=items(document.marks, Mark, _STACKS["marks"]),
    )
    for event in session.events:
        if not 0 <= event.site < len(session.sites):
            raise IndexError("an event names a site that is not there")
    return session


def save(session: Session, path: str | os.PathLike[str]) -> None:
    """Write `session` to `path`, whole or not at all.

    Raises:
        UnreadableInput: `path` cannot be written.
    """
    write_whole(encode(session), path)


def load(path: str | os.PathLike[str]) -> Session:
    """The session saved at `path`.

    Raises:
        UnreadableInput: no such file, or not a session.
    """
    return decode(read_whole(path), str(path))
