"""Add to recorded sites what the values that they read are used for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from gapless.emulation.support import stacks
from gapless.files.input import source_text
from gapless.model import Site, Span
from gapless.model.use import NamedTensors
from gapless.model.wording import count
from gapless.uses import ReadExpression, RunningPlace, read_uses
from gapless.uses.source_files import Project

_READS = ("read", "d2h", "size")
"""Mechanisms of waits that give the CPU a value or a size."""

MAX_SECONDS = 3.0
"""Seconds for a whole session: a site takes milliseconds, and a check takes several seconds at least."""


def add_uses(
    recorded: Iterable[tuple[Site, stacks.RawStack]],
    named: Mapping[int, tuple[NamedTensors, ...]],
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[tuple[Site, ...], tuple[str, ...]]:
    """Return the sites of a session with the uses of what they read, and notes on what failed.

    Each site comes with the stack at which it was recorded, and `named` has the tensors of the user's
    functions there, innermost first, by the site's number. After `MAX_SECONDS` of `clock` the rest keep their
    general advice.
    """
    project = Project(source_text)
    began = clock()
    sites: list[Site] = []
    failures: dict[str, int] = {}
    for number, (site, raw) in enumerate(recorded):
        if clock() - began > MAX_SECONDS:
            sites.append(site)
            continue
        try:
            sites.append(_with_uses(site, stacks.spans(raw), project, named.get(number, ())))
        except Exception as error:  # a defect here must not cost the user the whole check
            reason = f"{type(error).__name__}: {error}"
            failures[reason] = failures.get(reason, 0) + 1
            sites.append(site)
    return tuple(sites), tuple(_describe_failures(failures))


def _describe_failures(failures: dict[str, int]) -> Iterator[str]:
    for reason, times in failures.items():
        yield (
            f"what {count(times, 'value')} read from the GPU are used for could not be determined "
            f"({reason}): a defect of Gapless; the advice there is general"
        )


def _with_uses(
    site: Site, spans: Sequence[Span | None], project: Project, named: Sequence[NamedTensors]
) -> Site:
    """Return `site` with the span of the user's expression, and the uses of its value if it is a read."""
    places = [RunningPlace(line, span) for line, span in zip(site.stack, spans, strict=True)]
    depth = next((depth for depth, place in enumerate(places) if place.line.is_user), None)
    if depth is None or site.line != places[depth].line:
        return site  # a wait in backward belongs to the forward line, whose span is not recorded
    reading = ReadExpression()
    if site.mechanism in _READS and site.deciding_frame is None:
        reading = read_uses(project, places[depth:], site.mechanism, site.call, named)
    return msgspec.structs.replace(
        site, span=places[depth].span, expression=reading.expression, uses=reading.uses
    )
