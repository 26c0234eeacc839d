"""Convert the requests that `MemoryRecorder` gathered to a `MemoryRun`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gapless.emulation.support import stacks
from gapless.emulation.support.module_paths import display_names
from gapless.model.memory import ALLOC, EMPTY, FREE, STEP, Kind, MemoryRun, Place
from gapless.model.source import SourceLine
from gapless.model.wording import binary_size

_NUMBER = re.compile(r"\[\d+\]")
_EMPTY = -(1 << 60)
"""Entry of `RequestRows.order` for ``empty_cache()``: far below any ident."""
_NOTHING = _EMPTY - 1
"""Entry that is left out."""
_KINDS: dict[str, Kind] = {
    "parameter": "parameter",
    "gradient": "gradient",
    "optimizer": "optimizer",
    "optimizer-state": "optimizer",
    "backward": "backward",
    "batch": "batch",
    "workspace": "workspace",
    "communication": "communication",
    "checkpoint": "checkpoint",
}
NOT_MODELLED = (
    "not counted: memory that kernels allocate themselves (workspaces of cuDNN and cuBLASLt, of sorting "
    "and reductions), NCCL's and CUDA's own"
)


class RequestRows:
    """The requests of one device. `order` holds an ident per request, ``-1 - ident`` for its end, or
    `_EMPTY`.

    `used` is the position in `order` before which an allocation was last used. Once `closed`, only bytes are
    summed: `allocated` now, and `peak`.
    """

    def __init__(self, device: int) -> None:
        self.device = device
        self.order: list[int] = []
        self.sizes: list[int] = []
        self.kinds: list[str] = []
        self.places: list[int] = []
        self.streams: list[int] = []
        self.nodes: list[int] = []  # number of the next autograd node (-1: not of a graph)
        self.batches: list[tuple[int, tuple[int, ...]]] = []
        self.cuts: dict[int, int] = {}
        self.allocations_at: dict[int, int] = {}  # number of allocations at each mark
        self.modules: dict[int, str] = {}
        self.used: dict[int, int] = {}
        self.place_numbers: dict[tuple[Any, ...], int] = {}
        self.sums: dict[int, int] = {}
        self.closed = False
        self.allocated = self.peak = self.peak_before = 0

    def close(self) -> None:
        """Stop keeping single requests."""
        self.closed = True
        self.peak, self.peak_before = self.allocated, self.peak

    def add(self, size: int) -> None:
        """Change the allocated bytes by `size`."""
        self.allocated += size
        self.peak = max(self.peak, self.allocated)

    def notes(self) -> tuple[str, ...]:
        """Return a remark on the requests that were not kept."""
        if not self.closed:
            return ()
        most, before = binary_size(self.peak), binary_size(self.peak_before)
        later = (
            f"later {most} was allocated at a time, more than the {before} until then"
            if self.peak > self.peak_before
            else f"later no more was allocated at a time ({most}) than until then ({before})"
        )
        return (f"only the first {len(self.sizes):,} requests for memory are counted one by one: {later}",)

    def alloc(self, size: int, place: tuple[Any, ...], kind: str, stream: int, nodes: int = -1) -> int:
        """Add a request of `size` bytes, and return its ident."""
        ident = len(self.sizes)
        self.sizes.append(size)
        self.kinds.append(kind)
        self.places.append(self.place_numbers.setdefault(place, len(self.place_numbers)))
        self.streams.append(stream)
        self.nodes.append(nodes)
        self.order.append(ident)
        self.add(size)
        return ident

    def free(self, ident: int) -> None:
        """Record the end of a request."""
        self.add(-self.sizes[ident])
        if not self.closed:
            self.order.append(-1 - ident)

    def accumulates(self, before: int) -> None:
        """Note that the last request replaces `before` in place, if that ends right after."""
        last = len(self.sizes) - 1
        if self.order and self.order[-1] == last != before and self.sizes[last] == self.sizes[before]:
            self.sums[last] = before

    def in_place(self) -> list[int]:
        """Return `order` with in-place sums merged; the same number of entries, `_NOTHING` for merged
        ones."""
        order = list(self.order)
        replacements: dict[int, int] = {}
        for at, entry in enumerate(self.order):
            if entry >= 0:
                before = self.sums.get(entry)
                following = self.order[at + 1] if at + 1 < len(self.order) else 0
                if before is not None and following == -1 - before:
                    replacements[entry] = replacements.get(before, before)
                    order[at] = order[at + 1] = _NOTHING
            elif entry != _EMPTY and order[at] != _NOTHING and -1 - entry in replacements:
                order[at] = -1 - replacements[-1 - entry]
        return order

    def empty(self) -> None:
        self.order.append(_EMPTY)

    def cut(self, tick: int) -> None:
        """Note the mark number `tick`, counting from 1."""
        if self.closed:
            return
        self.cuts[tick] = len(self.order)
        self.allocations_at[tick] = len(self.sizes)


def to_memory_run(
    rows: RequestRows,
    ends: Iterable[int],
    classes: Mapping[str, str],
    *,
    notes: tuple[str, ...],
    **fields: Any,
) -> MemoryRun:
    """Return `rows` as a `MemoryRun`.

    `ends` are the numbers of the marks that end steps, `classes` those of modules by path; `fields` are
    passed on.
    """
    steps = [rows.cuts[number] for number in ends if number in rows.cuts]
    order = rows.in_place()
    sizes = rows.sizes
    table = _PlaceTable(rows, _kinds(rows, order[: steps[0]] if steps else order, order))
    action, ident, shapes, rows_at = _list_actions(rows, order, steps)
    idents = [number if kind == ALLOC else -1 for kind, number in zip(action, ident, strict=True)]
    return MemoryRun(
        origin="emulated",
        device=rows.device,
        action=tuple(action),
        ident=tuple(ident),
        size=tuple(sizes[number] if number >= 0 else 0 for number in idents),
        stream=tuple(rows.streams[number] if number >= 0 else 0 for number in idents),
        place=tuple(table.at[number] if number >= 0 else -1 for number in idents),
        places=tuple(table.places),
        lines=tuple(table.lines),
        classes=table.classes(classes),
        batches=tuple(shapes),
        used=tuple(rows_at[rows.used[number]] if number in rows.used else -1 for number in idents),
        notes=(*notes, *rows.notes(), NOT_MODELLED),
        **fields,
    )


def _list_actions(
    rows: RequestRows, order: Sequence[int], steps: Sequence[int]
) -> tuple[list[int], list[int], list[tuple[int, tuple[int, ...]]], list[int]]:
    """Return the actions in `order` with the ends of `steps` between them.

    Beside them the number of each action's request (-1: none), the batches by the position of their request,
    and the position of each entry of `order`, and of its end.
    """
    action: list[int] = []
    ident: list[int] = []
    pending = iter([*steps, -1])
    coming = next(pending)
    batches = dict(rows.batches)
    shapes: list[tuple[int, tuple[int, ...]]] = []
    rows_at: list[int] = []
    for at, entry in enumerate([*order, None]):
        rows_at.append(len(action))
        while coming == at:
            action.append(STEP)
            ident.append(-1)
            coming = next(pending)
        if entry is None:
            break
        if entry == _NOTHING:
            continue
        if entry == _EMPTY:
            action.append(EMPTY)
            ident.append(-1)
        elif entry < 0:
            action.append(FREE)
            ident.append(-1 - entry)
        else:
            if entry in batches:
                shapes.append((len(action), batches[entry]))
            action.append(ALLOC)
            ident.append(entry)
    return action, ident, shapes, rows_at


def _kinds(rows: RequestRows, first: list[int], order: list[int]) -> list[Kind]:
    """Return the kind of each allocation; those from before the first step that stay are unknown."""
    ended = {-1 - entry for entry in order if _EMPTY < entry < 0}
    early = {entry for entry in first if entry >= 0}
    return [
        _KINDS.get(kind) or ("unknown" if ident in early and ident not in ended else "activation")
        for ident, kind in enumerate(rows.kinds)
    ]


class _PlaceTable:
    """Places by allocation; each line is stored once."""

    def __init__(self, rows: RequestRows, kinds: list[Kind]) -> None:
        self.places: list[Place] = []
        self.lines: list[SourceLine] = []
        self.at: list[int] = []
        self._line: dict[SourceLine, int] = {}
        raws = {number: place for place, number in rows.place_numbers.items()}
        stacked = {number: self._stack(raw) for number, (_, raw, _) in raws.items()}
        self._paths = {module for _, _, module in raws.values()} | set(rows.modules.values())
        names = display_names(self._paths)
        place_numbers: dict[tuple[tuple[int, ...], str, Kind, str], int] = {}
        for ident, (number, kind) in enumerate(zip(rows.places, kinds, strict=True)):
            operator, _, module = raws[number]
            key = (stacked[number], operator, kind, names[rows.modules.get(ident, module)])
            at = place_numbers.get(key)
            if at is None:
                at = place_numbers[key] = len(self.places)
                self.places.append(Place(*key))
            self.at.append(at)

    def classes(self, module_classes: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        """Return the modules' classes by their display paths; repeated layers once."""
        names = display_names(module_classes, self._paths)
        return tuple(
            dict.fromkeys(
                (_NUMBER.sub("[*]", names[path]), name)
                for path, name in module_classes.items()
                if names[path]
            )
        )

    def _stack(self, raw: stacks.RawStack) -> tuple[int, ...]:
        """Return the numbers of the stack's lines."""
        numbers = []
        for line in stacks.resolve(raw):
            at = self._line.get(line)
            if at is None:
                at = self._line[line] = len(self.lines)
                self.lines.append(line)
            numbers.append(at)
        return tuple(numbers)
