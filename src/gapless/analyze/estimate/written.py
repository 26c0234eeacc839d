"""Write the run of an imagined machine as a `Timeline`, like the reader of profiles does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TypeVar

import numpy as np

from gapless.trace.timeline import (
    ColumnTable,
    Facts,
    Host,
    HostKind,
    Links,
    Memory,
    Syncs,
    Thread,
    Timeline,
    TraceGpu,
    Work,
)

T = TypeVar("T", bound=ColumnTable)

Span = tuple[float, float]
CallRow = tuple[int, int, float, float, int]
"""Kind, name, start, end and correlation of a span of the host."""
WorkRow = tuple[int, int, int, float, float, int, int]
"""Kind, name, stream, start, end, correlation and bytes of work on the device."""
SyncRow = tuple[float, int, int, int, int]
"""Time of a wait between streams, waiting stream, its call, awaited stream, and the recording call."""

NAMES = (
    "cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaDeviceSynchronize", "kernel",
    "Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pageable)",
    "Memcpy DtoH (Device -> Pinned)", "ProfilerStep#", "Stream Wait Event", "cudaStreamWaitEvent",
    "cudaEventRecord", "cudaGraphLaunch",
)  # fmt: skip
NUMBER = {name: number for number, name in enumerate(NAMES)}


def write_timeline(
    calls: Sequence[CallRow],
    work: Sequence[WorkRow],
    syncs: Sequence[SyncRow],
    marks: Sequence[Span],
    gpu: str,
) -> tuple[Timeline, list[int]]:
    """Return the timeline, and the host row of each call. `marks` are the steps."""
    ranges = [(HostKind.ANNOTATION, NUMBER["ProfilerStep#"], begin, end, -1) for begin, end in marks]
    columns = np.array([*calls, *ranges], np.int64).reshape(-1, 5).T
    order = np.lexsort((-columns[3], columns[2]))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    kind, name, start, end, correlation = columns[:, order]
    count = len(kind)
    minus = np.full(count, -1, np.int64)
    host = Host(
        kind=kind.astype(np.int8), name=name.astype(np.int32), thread=np.zeros(count, np.int32), start=start,
        end=end, correlation=correlation, external=minus, sequence=minus,
        forward_thread=np.zeros(count, np.int64), stack=minus.astype(np.int32),
        arguments=minus.astype(np.int32),
    )  # fmt: skip
    timeline = Timeline(
        host=host,
        work=_work_table(work),
        syncs=_sync_table(syncs),
        memory=_empty_table(Memory),
        links=_empty_table(Links),
        names=NAMES,
        threads=(Thread("1", "1", "main"),),
        facts=Facts(gpus=(TraceGpu(0, gpu),), vendor="nvidia"),
    )
    return timeline, place[: len(calls)].tolist()


def _work_table(work: Sequence[WorkRow]) -> Work:
    columns = np.array(work, np.int64).reshape(-1, 7)
    columns = columns[np.argsort(columns[:, 3], kind="stable")].T
    kind, name, stream, start, end, correlation, nbytes = columns
    count = len(kind)
    minus = np.full(count, -1, np.int64)
    unknown = np.full(count, -1.0)
    return Work(
        kind=kind.astype(np.int8), name=name.astype(np.int32), device=np.zeros(count, np.int64),
        stream=stream, start=start, end=end, correlation=correlation, external=minus, bytes=nbytes,
        blocks_per_sm=unknown, occupancy=unknown, group=minus.astype(np.int32),
        elements=minus,
    )  # fmt: skip


def _sync_table(syncs: Sequence[SyncRow]) -> Syncs:
    start, stream, correlation, on_stream, record = np.array(syncs, np.int64).reshape(-1, 5).T
    count = len(start)
    return Syncs(
        kind=np.full(count, NUMBER["Stream Wait Event"], np.int32), start=start, end=start,
        device=np.zeros(count, np.int64), stream=stream, correlation=correlation, on_stream=on_stream,
        record=record,
    )  # fmt: skip


def _empty_table(table: type[T]) -> T:
    return table(**{column.name: np.empty(0, np.int64) for column in fields(table)})
