"""Say in words what memory is for at a moment, by kind and by module, and whether a run fits its GPU."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from gapless.memory.modules import CHAIN, fold_numbers, part_name
from gapless.memory.nccl import describe_remaining_room
from gapless.memory.settings import parse
from gapless.model.memory import Kind, MemoryRun
from gapless.model.memory_report import MemoryReport, Moment, Part
from gapless.model.wording import TENSORS, binary_size, count, each_time, in_unit, unit_of

_FIRST_KINDS: tuple[Kind, ...] = ("parameter", "gradient", "optimizer", "activation")
"""Kinds that are named first; the rest follow by size."""
_MIN_SHARE_TO_NAME = 0.01
"""Parts below this share of the allocated memory are not named in a sentence."""
_MIN_SHARE_OF_MODULE = 0.5
"""A module is named with a kind if it holds this share of it."""
_MAX_PARTS_NAMED = 6
"""Parts in a sentence."""
_GROWTH_CODE = "GAP405"
"""The finding that memory grows from step to step."""


def parts(
    run: MemoryRun, live: Mapping[int, int], places: Mapping[int, int], roles: Mapping[int, Kind]
) -> tuple[Part, ...]:
    """Return the bytes of the allocations `live` by kind, each with the module that holds most of it.

    `places` and `roles` map allocations to place and kind.
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
    return _FIRST_KINDS.index(kind) if kind in _FIRST_KINDS else len(_FIRST_KINDS)


def _part(kind: Kind, total: int, tensors: int, inside: Mapping[str, int]) -> Part:
    module, size = _deepest(inside, total)
    layers = {part_name(path) for path in inside if _within(fold_numbers(path), module)} if module else set()
    return Part(
        kind=kind, bytes=total, tensors=tensors, module=module, modules=len(layers), module_bytes=size
    )


def _deepest(inside: Mapping[str, int], total: int) -> tuple[str, int]:
    """Return the innermost module that holds half of `total`, and its bytes; "" and 0 if none does."""
    held: Counter[str] = Counter()
    for path, size in inside.items():
        for prefix in _prefixes(fold_numbers(path)):
            held[prefix] += size
    holding_most = [prefix for prefix, size in held.items() if size >= _MIN_SHARE_OF_MODULE * total]
    if not holding_most:
        return "", 0
    module = max(holding_most, key=lambda prefix: (len(_links(prefix)), held[prefix]))
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


def describe_parts(moment: Moment) -> str:
    """Return ``weights 12.6 GiB, gradients 12.6, activations 9.8 (of which `layers[*].mlp` 5.1)``.

    "" if no kind is known.
    """
    total = sum(part.bytes for part in moment.parts)
    named = [part for part in moment.parts if part.bytes >= _MIN_SHARE_TO_NAME * total]
    if not total or {part.kind for part in named} <= {"unknown"}:
        return ""
    return ", ".join(_describe_each(named[:_MAX_PARTS_NAMED]))


def _describe_each(parts: Iterable[Part]) -> Iterator[str]:
    unit = ""
    for part in parts:
        size = in_unit(part.bytes, unit) if unit else binary_size(part.bytes)
        unit = unit or unit_of(part.bytes)
        shows_module = part.module and part.kind == "activation"
        more = f" (of which `{part.module}` {in_unit(part.module_bytes, unit)})" if shows_module else ""
        yield f"{TENSORS.get(part.kind, part.kind)} {size}{more}"


def describe_room(report: MemoryReport) -> str:
    """Return ``peak 66.7 GiB reserved (61.9 allocated) of 78.7 on the A100-SXM4-80GB: fits; weights …``.

    "" if there is no limit to fit into, or the run does not fit.
    """
    answer = describe_fit(report)
    if not answer:
        return ""
    base = report.baseline
    unit = unit_of(base.peak_reserved)
    peak = f"peak {binary_size(base.peak_reserved)} reserved ({in_unit(base.peak_allocated, unit)} allocated)"
    limit = allowed_bytes(report)
    has = in_unit(limit, unit) if unit_of(limit) == unit else binary_size(limit)
    whom = f" on the {report.gpu.removeprefix('NVIDIA ')}" if report.gpu else ""
    return "; ".join(filter(None, [f"{peak} of {has}{whom}: {answer}", describe_parts(report.peak)]))


def describe_fit(report: MemoryReport) -> str:
    """Return ``fits``, with its qualifications; "" if the run does not fit or has no limit."""
    if report.lack is not None or report.limit < 0 or report.at_least:
        return ""
    base = report.baseline
    retries = f", but runs full for {base.retries} requests" if base.retries else ""
    answer = _fit_while_growing(report) or _fit_with_longest(report) or "fits"
    return (
        f"{answer}{retries}{describe_remaining_room(report.nccl, allowed_bytes(report) - base.peak_reserved)}"
    )


def _fit_with_longest(report: MemoryReport) -> str:
    """Return the text instead of "fits" if a longer item is known than this run's batches had; else ""."""
    longest = report.longest
    if longest is None:
        return ""
    if longest.why_not:
        untried = f"an item of {longest.length:,} was not tried: {longest.why_not}"
        return f"fits with the batches of this run; {untried}"
    recorded = f"fits with the {longest.batches} batches of this run, up to {longest.seen:,} long"
    if longest.fits:
        return f"{recorded}, and with an item of {longest.length:,}: {binary_size(longest.needs)}"
    short = binary_size(longest.needs - longest.has)
    return f"an item of {longest.length:,} needs {short} more than there is; it {recorded}"


def _fit_while_growing(report: MemoryReport) -> str:
    """Return the text instead of "fits" if memory grows, so that the run fits only for so long; else ""."""
    if not any(finding.code == _GROWTH_CODE for finding in report.findings):
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


def allowed_bytes(report: MemoryReport) -> int:
    """Return the bytes the process may use: the limit, or its allowed fraction of the device."""
    fraction = parse(report.settings).fraction
    if fraction >= 1 or report.total_memory < 0:
        return report.limit
    return min(report.limit, int(fraction * report.total_memory))
