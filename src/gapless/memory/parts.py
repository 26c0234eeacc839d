"""What the memory at a moment is for: weights, gradients, activations, and which modules hold most of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from gapless.memory.modules import CHAIN, folded, one_of
from gapless.memory.nccl import beside
from gapless.memory.settings import parse
from gapless.model.memory import Kind, MemoryRun
from gapless.model.memory_report import MemoryReport, Moment, Part
from gapless.model.wording import TENSORS, binary_size, count, each_time, in_unit, unit_of

_ORDER: tuple[Kind, ...] = ("parameter", "gradient", "optimizer", "activation")
"""Kinds that are named first; the others follow by size."""
_TOLD = 0.01
"""A part of less than this share of the allocated memory is not named in a sentence."""
_MOST = 0.5
"""A module that holds this share of a kind is named with it."""
_FEW = 6
_GROWS = "GAP405"
"""The finding that memory grows from step to step."""


def parts(
    run: MemoryRun, live: Mapping[int, int], places: Mapping[int, int], roles: Mapping[int, Kind]
) -> tuple[Part, ...]:
    """The bytes of the allocations `live` by kind, each with the module that holds most of it.

    `places` and `roles` give each allocation's place and kind.
    """
    held: Counter[Kind] = Counter()
    tensors: Counter[Kind] = Counter()
    inside: defaultdict[Kind, Counter[str]] = defaultdict(Counter)
    for ident, size in live.items():
        kind = roles[ident]
        held[kind] += size
        tensors[kind] += 1
        place = places[ident]
        if 0 <= place < len(run.places) and run.places[place].module:
            inside[kind][run.places[place].module] += size
    kinds = sorted(held, key=lambda kind: (_rank(kind), -held[kind], kind))
    return tuple(_part(kind, held[kind], tensors[kind], inside[kind]) for kind in kinds)


def _rank(kind: Kind) -> int:
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER)


def _part(kind: Kind, total: int, tensors: int, inside: Mapping[str, int]) -> Part:
    module, size = _deepest(inside, total)
    ones = {one_of(path) for path in inside if _within(folded(path), module)} if module else set()
    return Part(kind=kind, bytes=total, tensors=tensors, module=module, modules=len(ones), module_bytes=size)


def _deepest(inside: Mapping[str, int], total: int) -> tuple[str, int]:
    """The innermost module that holds half of `total`, with what it holds; "" where none does."""
    held: Counter[str] = Counter()
    for path, size in inside.items():
        for prefix in _prefixes(folded(path)):
            held[prefix] += size
    most = [prefix for prefix, size in held.items() if size >= _MOST * total]
    if not most:
        return "", 0
    module = max(most, key=lambda prefix: (len(_links(prefix)), held[prefix]))
    return module, held[module]


def _links(path: str) -> list[str]:
    return path.split(CHAIN if CHAIN in path else ".")


def _prefixes(path: str) -> Iterator[str]:
    links, joint = _links(path), CHAIN if CHAIN in path else "."
    for length in range(1, len(links) + 1):
        yield joint.join(links[:length])


def _within(path: str, module: str) -> bool:
    return path == module or path.startswith((f"{module}.", f"{module}{CHAIN}"))


# In words -----------------------------------------------------------------------------------------


def told(moment: Moment) -> str:
    """``weights 12.6 GiB, gradients 12.6, activations 9.8 (of which `layers[*].mlp` 5.1)``; "" where no kind
    is known."""
    total = sum(one.bytes for one in moment.parts)
    known = [one for one in moment.parts if one.bytes >= _TOLD * total]
    if not total or {one.kind for one in known} <= {"unknown"}:
        return ""
    return ", ".join(_words(known[:_FEW]))


def _words(known: Iterable[Part]) -> Iterator[str]:
    unit = ""
    for one in known:
        size = in_unit(one.bytes, unit) if unit else binary_size(one.bytes)
        unit = unit or unit_of(one.bytes)
        of = one.module and one.kind == "activation"
        more = f" (of which `{one.module}` {in_unit(one.module_bytes, unit)})" if of else ""
        yield f"{TENSORS.get(one.kind, one.kind)} {size}{more}"


def room(report: MemoryReport) -> str:
    """``peak 66.7 GiB reserved (61.9 allocated) of 78.7 on the A100-SXM4-80GB: fits; weights 12.6 GiB, …``.

    "" where nothing says what it should fit into, or where it does not.
    """
    answer = answered(report)
    if not answer:
        return ""
    base = report.baseline
    unit = unit_of(base.peak_reserved)
    peak = f"peak {binary_size(base.peak_reserved)} reserved ({in_unit(base.peak_allocated, unit)} allocated)"
    limit = allowed(report)
    has = in_unit(limit, unit) if unit_of(limit) == unit else binary_size(limit)
    whom = f" on the {report.gpu.removeprefix('NVIDIA ')}" if report.gpu else ""
    return "; ".join(filter(None, [f"{peak} of {has}{whom}: {answer}", told(report.peak)]))


def answered(report: MemoryReport) -> str:
    """``fits``, with what is to be said of that; "" where it does not, or nothing says into what."""
    if report.lack is not None or report.limit < 0 or report.at_least:
        return ""
    base = report.baseline
    retries = f", but runs full for {base.retries} requests" if base.retries else ""
    answer = _holds(report) or _with_longest(report) or "fits"
    return f"{answer}{retries}{beside(report.nccl, allowed(report) - base.peak_reserved)}"


def _with_longest(report: MemoryReport) -> str:
    """What is said in place of "fits" where a longer item is known of than the batches of this run had."""
    one = report.longest
    if one is None:
        return ""
    if one.why_not:
        return f"fits with the batches of this run; an item of {one.length:,} was not tried: {one.why_not}"
    seen = f"fits with the {one.batches} batches of this run, up to {one.seen:,} long"
    if one.fits:
        return f"{seen}, and with an item of {one.length:,}: {binary_size(one.needs)}"
    return f"an item of {one.length:,} needs {binary_size(one.needs - one.has)} more than there is; it {seen}"


def _holds(report: MemoryReport) -> str:
    """What is said in place of "fits" of a run whose memory grows: it fits only for so long."""
    if not any(one.code == _GROWS for one in report.findings):
        return ""
    steps = count(report.steps, "step")
    if report.finished:
        grown = f"grew by {binary_size(report.grows_by)} {each_time(report.grows_every)}"
        return f"fits for the whole run of {steps}, in which memory {grown}"
    return (
        f"enough for these {steps}, full after {report.lasts:,} more"
        if report.lasts >= 0
        else f"grows in {steps}"
    )


def allowed(report: MemoryReport) -> int:
    """What the process may have: the device's, or the fraction of it that it is limited to; bytes."""
    fraction = parse(report.settings).fraction
    if fraction >= 1 or report.total_memory < 0:
        return report.limit
    return min(report.limit, int(fraction * report.total_memory))
