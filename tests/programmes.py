"""Build programmes (recorded operators, copies and waits) and sessions that hold them."""

from __future__ import annotations

from collections.abc import Sequence

from gapless.model import Environment, Event, Session, Site, SourceLine, StepMark
from gapless.model.programme import Entry, GpuRates, Programme, Segment

A100 = GpuRates(
    name="NVIDIA A100-SXM4-80GB", bandwidth=2039, fp32=19.5, tf32=156, fp16=312, bf16=312, pcie=32,
    l2_bytes=40 << 20, multiprocessors=108,
)  # fmt: skip
MS = 1_000_000
SMALL = 1_000


def add(milliseconds: float = 0.0, **more: object) -> Entry:
    """An addition that takes about so long on an A100; none: the shortest kernel."""
    moved = int(milliseconds * MS * 2039 * 0.87)
    half = moved // 2 or 4 * SMALL
    return Entry(
        name="aten::add", dtype="float32", inputs=((SMALL,),), outputs=((SMALL,),), tensors=1, elements=SMALL,
        reads=half, writes=half, **more,
    )  # fmt: skip


def read(site: int = 0, waits: int = 1) -> Entry:
    """A value is read."""
    return Entry(kind="wait", name="aten::_local_scalar_dense", site=site, mechanism="read", waits=waits)


def send(site: int = 0, nbytes: int = 1 << 20, detail: str = "pageable") -> Entry:
    """A copy to the device that blocks."""
    return Entry(
        kind="wait", name="aten::_to_copy", site=site, mechanism="h2d", detail=detail, waits=1, reads=nbytes
    )


def prefetch(nbytes: int = 1 << 20) -> Entry:
    """A copy from pinned memory that does not."""
    return Entry(kind="copy", mechanism="h2d", detail="pinned", reads=nbytes)


def synchronize(site: int = 0) -> Entry:
    """``torch.cuda.synchronize()``."""
    return Entry(kind="wait", name="cudaDeviceSynchronize", site=site, mechanism="explicit", waits=1)


def empty(site: int = 0) -> Entry:
    """``torch.cuda.empty_cache()`` where there is something to give back."""
    return Entry(kind="wait", name="cudaFree", site=site, mechanism="free", waits=1)


def programme(*steps: Sequence[Entry], gpu: GpuRates = A100, **more: object) -> Programme:
    """These steps, one for each tick."""
    entries = tuple(dict.fromkeys(entry for step in steps for entry in step))
    number = {entry: position for position, entry in enumerate(entries)}
    bodies = tuple(dict.fromkeys(tuple(number[entry] for entry in step) for step in steps))
    segments = tuple(
        Segment(tick=tick, body=bodies.index(tuple(number[entry] for entry in step)))
        for tick, step in enumerate(steps)
    )
    return Programme(gpu=gpu, entries=entries, bodies=bodies, segments=segments, **more)


def session(*steps: Sequence[Entry], **more: object) -> Session:
    """A run of these steps on an emulated A100; the waits of site n are at line n + 1."""
    recorded = programme(*steps, **more)
    waits = [entry for entry in recorded.entries if entry.kind == "wait"]
    count = max((entry.site for entry in waits), default=-1) + 1
    mechanism = {entry.site: (entry.name, entry.mechanism, entry.detail) for entry in waits}
    sites = []
    for site in range(count):
        operator, kind, detail = mechanism.get(site, ("aten::_local_scalar_dense", "read", ""))
        line = SourceLine("/work/train.py", site + 1, "train", f"line {site + 1}")
        sites.append(Site(operator=operator, mechanism=kind, detail=detail, stack=(line,)))
    events = [
        Event(site=entry.site, tick=tick, time=tick, waits=entry.waits)
        for tick, step in enumerate(steps)
        for entry in step
        if entry.kind == "wait"
    ]
    end = (SourceLine("/work/train.py", 99, "train", "optimizer.step()"),)
    marks = [
        StepMark(kind="optimizer", tick=tick, time=tick + 0.5, name="SGD.step#0", stack=end)
        for tick in range(len(steps))
    ]
    return Session(
        script=("train.py",),
        environment=Environment(device=recorded.gpu.name, emulated=True),
        sites=tuple(sites),
        events=tuple(events),
        marks=tuple(marks),
        programme=recorded,
    )
