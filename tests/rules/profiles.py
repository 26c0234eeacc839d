"""Profiles made by hand, in few words, and what the rules say of them."""

from __future__ import annotations

from gapless.model import Cost, Hit, Profile, Site, SourceLine
from gapless.model.profile import (
    KernelTime,
    Launches,
    MemoryUse,
    Recording,
    Steps,
)
from gapless.rules import rule

MS = 1_000_000
GB = 1_000_000_000
SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def user(number: int, file: str = "train.py", function: str = "train") -> SourceLine:
    return SourceLine(file, number, function)


def library(file: str, function: str) -> SourceLine:
    return SourceLine(file, 10, function, library=file.split("/", 1)[0])


def site(operator: str = "", number: int = 0, *below: SourceLine, call: str = "") -> Site:
    stack = (*below, user(number)) if number else below
    return Site(operator=operator, mechanism="none", call=call, stack=stack)


def cost(cause: str, ms: float, where: Site, **fields: object) -> Cost:
    return Cost(cause=cause, site=where, idle=round(ms * MS), **fields)  # type: ignore[arg-type]


def steps(*lengths: float, source: str = "ProfilerStep") -> Steps:
    """Steps of so many milliseconds, one behind the other."""
    bounds = [0]
    for length in lengths:
        bounds.append(bounds[-1] + round(length * MS))
    return Steps(source=source, start=tuple(bounds[:-1]), end=tuple(bounds[1:]), busy=(0,) * len(lengths))


def profile(*costs: Cost, marked: Steps | None = None, **fields: object) -> Profile:
    """Six steps of 100 ms with these costs; the device is busy in the rest."""
    marked = marked or steps(*[100] * 6)
    idle = sum(cost.idle for cost in costs)
    defaults = {
        "device": 0,
        "utilization": 1 - idle / max(marked.total, 1),
        "recording": Recording(stacks="frames"),
        **fields,
    }
    return Profile(steps=marked, idle=idle, costs=costs, **defaults)  # type: ignore[arg-type]


def find_hits(code: str, drawn: Profile) -> list[Hit]:
    return list(rule(code).of_profile(drawn))


def only(code: str, drawn: Profile) -> Hit:
    (hit,) = find_hits(code, drawn)
    return hit


def said(hit: Hit) -> str:
    return "\n".join(hit.evidence)


def memory(
    drops: int, given_back: float, taken_again: float, peak: float = 40, allocated: float = 30
) -> MemoryUse:
    return MemoryUse(
        peak_allocated=round(allocated * GB),
        peak_reserved=round(peak * GB),
        drops=drops,
        given_back=round(given_back * GB),
        taken_again=round(taken_again * GB),
    )


def kernel(name: str, ms: float, blocks: float, **fields: object) -> KernelTime:
    return KernelTime(name=name, calls=60, total=round(ms * MS), blocks_per_sm=blocks, **fields)  # type: ignore[arg-type]


LAUNCHES = Launches(count=6000, short=4200, empty=0.43, call=6300, kernel=4100)


STACKS = Recording(stacks="frames", with_stack=True, events_per_step=21_000)
