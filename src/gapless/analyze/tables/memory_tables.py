"""Tables of the replayed allocator: who holds the peak, calls to the driver, other settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gapless.analyze.tables.sides import MAX_ROWS_SHOWN
from gapless.model import SourceLine, Table
from gapless.model.memory_report import (
    Buffers,
    Kept,
    LargestBatch,
    MemoryReport,
    Moment,
    Outcome,
    Owner,
    Part,
    Trial,
)
from gapless.model.table import Cell, Row, Tone, table
from gapless.model.wording import (
    TENSORS,
    binary_size,
    binary_size_range,
    count,
    describe_change,
    duration,
    percent,
)

_MIN_SAVED_SHARE = 0.02
"""Share of the peak that a setting must save to be marked as better."""
CHAIN = " > "
"""Separator of the calls that lead to a module, if its path is unknown."""
_MAX_LINKS, _MAX_MODULES = 3, 5


def tables(report: MemoryReport) -> tuple[Table, ...]:
    """Return the tables of `report` that have rows or notes."""
    results = [
        _curve(report),
        _room(report),
        _owners(report),
        _driver(report),
        _trials(report),
        _remedies(report),
        _growth(report),
    ]
    return tuple(table for table in results if table is not None and (table.rows or table.notes))


def _curve(report: MemoryReport) -> Table | None:
    """Draw reserved and allocated memory over the events, on one scale."""
    top = max(report.curve.reserved, default=0)
    if len(report.curve.event) < 2 or not top:
        return None
    curves: tuple[tuple[str, tuple[int, ...], Tone], ...] = (
        ("reserved", report.curve.reserved, ""),
        ("allocated", report.curve.allocated, "good"),
    )
    rows = (
        Row((name, tuple(value / top for value in values), binary_size(max(values))), tone)
        for name, values, tone in curves
    )
    return table("Memory", "~ | at most", rows, where="before")


_SOURCES = {
    "workspace": "PyTorch's cuBLAS workspace for each handle and stream (CublasHandlePool.cpp)",
    "checkpoint": "what `torch.load` put on the GPU, besides weights and optimizer state",
    "communication": "torch.distributed's own buffers; NCCL's come on top",
}
"""Where the size of a part comes from, by its kind."""


def _room(report: MemoryReport) -> Table | None:
    """Divide the GPU's memory at the peak into kinds of tensors and what is left."""
    moment = report.failing or report.peak
    if report.limit < 0 or report.total_memory < report.limit or not moment.parts:
        return None
    from gapless.memory.parts import allowed_bytes  # loaded when memory was recorded

    total = report.total_memory
    needs = (
        report.lack.needs if report.lack is not None else max(report.baseline.peak_reserved, moment.reserved)
    )
    requested = sum(part.bytes for part in moment.parts)
    room = allowed_bytes(report)
    rest = (
        (
            "rounding",
            moment.allocated - requested,
            "to 512 bytes, plus the ends of blocks that are not split off",
        ),
        ("cached, or missing" if report.lack is not None else "cached", needs - moment.allocated, ""),
        ("not available to this process", report.limit - room, "torch.cuda.set_per_process_memory_fraction"),
        ("CUDA itself", total - report.limit, "context and libraries: assumed, not measured"),
    )
    rows = [
        Row(
            (
                TENSORS.get(part.kind, part.kind),
                binary_size(part.bytes),
                format_share(part.bytes / total),
                _source_of(part),
            )
        )
        for part in moment.parts
    ]
    rows += [
        Row((name, binary_size(size), format_share(size / total), why), "dim")
        for name, size, why in rest
        if size > 0
    ]
    left = room - needs
    if report.nccl is not None:
        rows.append(
            Row(("NCCL's buffers", *_nccl(report.nccl, total), "not in any other row (docs/fit.md)"), "dim")
        )
    left_row = Row(("left", binary_size(left), format_share(left / total), ""), "good")
    short_row = Row(("short", binary_size(-left), format_share(-left / total), ""), "bad")
    title = f"The memory of the {report.gpu.removeprefix('NVIDIA ')}" if report.gpu else "The GPU's memory"
    return table(
        f"{title}, {binary_size(total)}",
        "bytes | share | <of it",
        (*rows, left_row if left >= 0 else short_row),
        shown=-1 if report.lack is not None else 0,
        where="before",
    )


def _nccl(buffers: Buffers, total: int) -> tuple[str, str]:
    """Return bytes and share of NCCL's buffers as ranges."""
    least, most = format_share(buffers.least / total), format_share(buffers.most / total)
    return binary_size_range(buffers.least, buffers.most), least if least == most else f"{least}–{most}"


def _source_of(part: Part) -> str:
    """Return the module that holds most of a part, or where its size comes from."""
    if part.module:
        many = f" ×{part.modules}" if part.modules > 1 and "*" in part.module else ""
        return f"{join_chain(part.module.split(CHAIN))}{many} {binary_size(part.module_bytes)}"
    return _SOURCES.get(part.kind, "")


def _owners(report: MemoryReport) -> Table | None:
    """List who holds memory at the peak, or when a request fails."""
    peak = report.failing or report.peak
    if not peak.owners:
        return None
    total = sum(peak.kinds.values()) or 1
    rows = [
        Row(
            (
                *owner_cells(holder),
                str(holder.tensors),
                binary_size(holder.bytes),
                format_share(holder.bytes / total),
            )
        )
        for holder in peak.owners
    ]
    rest = total - sum(holder.bytes for holder in peak.owners)
    if rest > 0:
        rows.append(Row(("elsewhere", "", "", "", binary_size(rest), format_share(rest / total)), "dim"))
    title = "At the peak" if report.failing is None else "When the request failed"
    heading = f"{title}, {describe_moment(peak, report)}: {binary_size(peak.allocated)} allocated"
    return table(
        heading,
        "<at | < | tensors | bytes | share",
        rows,
        shown=MAX_ROWS_SHOWN,
        rest="owners",
        notes=tuple(_peak_notes(report, peak, total)),
        where="before",
    )


def _peak_notes(report: MemoryReport, peak: Moment, total: int) -> Iterator[str]:
    """Yield the peak by kind and by module, and what only a name keeps alive."""
    if set(peak.kinds) != {"unknown"}:
        kinds = (
            f"{TENSORS.get(kind, kind)} {format_share(size / total)}" for kind, size in peak.kinds.items()
        )
        yield f"by kind: {', '.join(kinds)}"
    if len(peak.modules) > 1:
        yield f"by module: {', '.join(_parts(peak, total))}"
    yield from map(kept_advice, report.kept)


def owner_cells(holder: Owner) -> tuple[str, Cell, str]:
    """Return cells for module (or operator), line and kind of a holder."""
    line = holder.line
    label = holder.operator.removeprefix("aten::") + (", …" if holder.operators > 1 else "")
    kind = TENSORS.get(holder.kind, holder.kind)
    if line is None:
        nobody = "no Python stack, for example in backward" if holder.threaded else "no stack recorded"
        return (
            module_name(holder) or label or ("from before the recording" if holder.before else nobody),
            "",
            kind,
        )
    at = line if line.is_user else SourceLine(_tail(line.file), line.line)
    return module_name(holder, f"{_tail(line.file, 1)}:{line.line}") or label or line.function, at, kind


def module_name(owner: Owner, at: str = "") -> str:
    """Return the module with its count; of a chain the last links, without the line `at`."""
    links = owner.module.split(CHAIN)
    if links[-1] == at:
        links.pop()
    name = join_chain(links[-_MAX_LINKS:])
    return f"{name} ×{owner.modules}" if owner.modules > 1 and "*" in name else name


def join_chain(links: Sequence[str]) -> str:
    """Join the links of a chain, naming each file once: ``model.py:244 > 200``."""
    names: list[str] = []
    before = ""
    for link in links:
        file, _, line = link.rpartition(":")
        names.append(line if file and file == before else link)
        before = file
    return CHAIN.join(names)


def _parts(moment: Moment, total: int) -> Iterator[str]:
    """Yield the modules that hold most, with their shares."""
    for part in moment.modules[:_MAX_MODULES]:
        many = f" ×{part.modules}" if "*" in part.module else ""
        yield f"{join_chain(part.module.split(CHAIN))}{many} {format_share(part.bytes / total)}"
    more = sum(part.bytes for part in moment.modules[_MAX_MODULES:])
    if more:
        yield f"{len(moment.modules) - _MAX_MODULES} more {format_share(more / total)}"
    rest = total - sum(part.bytes for part in moment.modules)
    if rest > 0:
        yield f"outside modules {format_share(rest / total)}"


def kept_advice(kept: Kept) -> str:
    """Say what a name keeps alive and how to release it."""
    at = f"{_tail(kept.line.file, 1)}:{kept.line.line}" if kept.line else kept.operator
    label = f"`{kept.name}` ({at})" if kept.name else f"the result of {at}"
    gain = (
        f"saves {binary_size(kept.saves)} at the peak ({describe_change(kept.before, kept.after, 'bytes')})"
    )
    act = f"`del {kept.name}`" if kept.name else "releasing it"
    if kept.sure:
        return f"{label} is not used any more at the peak: {act} after the last use {gain}"
    return (
        f"{label} stays alive until the next step reassigns it: if that step does not read it, {act} at the "
        f"end of the step {gain}"
    )


def format_share(part: float) -> str:
    return "<0.1 %" if part < 0.0005 else percent(part)


def _tail(file: str, parts: int = 2) -> str:
    """Return the last `parts` of a path."""
    return "/".join(file.replace("\\", "/").split("/")[-parts:])


def describe_moment(moment: Moment, report: MemoryReport) -> str:
    """Say where in the run a moment is."""
    if moment.event < 0:
        return "as recording begins" if report.events else "as the snapshot was taken"
    where = f", in {moment.operator}" if report.origin == "profile" and moment.operator else ""
    if report.steps:
        return f"in step {moment.step + 1} of {max(report.steps, moment.step + 1)}{where}"
    return f"event {moment.event + 1} of {report.events}{where}"


def _driver(report: MemoryReport) -> Table:
    """Return the allocator's idle memory, driver calls and the replay's exactness."""
    rows = [Row(("idle", describe_idle(report.height)))] if report.height.reserved else []
    rows.append(Row(("calls to the driver", describe_calls(report))))
    if report.fidelity is not None:
        rows.append(Row(("replay", _fidelity(report)), "" if report.fidelity.exact else "bad"))
    if report.largest is not None:
        rows.append(Row(("largest batch", _largest(report.largest)), "" if report.largest.batch else "bad"))
    return table("The allocator", "<", rows)


def describe_idle(height: Moment) -> str:
    """Describe the memory reserved but unused at the peak of reserved memory."""
    if not height.free:
        return "nothing: at the peak, all reserved memory is in use"
    pieces = f"in {count(height.free_blocks, 'piece')}, the largest {binary_size(height.largest)}"
    if height.free_blocks == 1:
        pieces = "in one piece"
    text = f"{binary_size(height.free)} of {binary_size(height.reserved)} at the peak of reserved memory"
    text += f", {pieces}" if height.free_blocks else ""  # a profile does not tell the pieces
    text += f" ({binary_size(height.small)} of it for requests up to 1 MiB)" if height.small else ""
    return text + (f"; rounding takes {binary_size(height.slack)}" if height.slack else "")


def describe_calls(report: MemoryReport) -> str:
    """Describe the calls to the driver and the time they take."""
    base = report.baseline
    parts = list(_counts(base))
    if not parts:
        return "none: the cache serves every request"
    times = "with this run's own timings" if report.times.source == "measured" else "with typical timings"
    run_share = f", {percent(base.price / report.span)} of the run" if report.span > 0 else ""
    price = f"about {duration(base.price)} {times}{run_share}"
    if base.retries and report.replayed:
        drain = report.times.drain
        price += (
            f"; {duration(base.retries * drain)} of it is the GPU finishing its queue before a retry"
            if drain >= 0
            else "; the time for the GPU to finish its queue before each retry is not known and comes on top"
        )
    return ", ".join([*parts, price])


def _counts(outcome: Outcome) -> Iterator[str]:
    """Yield calls to the driver by kind, retries and garbage collections."""
    named = (
        (outcome.mallocs, "cudaMalloc"),
        (outcome.frees, "cudaFree"),
        (outcome.maps, "mapped"),
        (outcome.unmaps, "unmapped"),
    )
    yield from (f"{number} {name}" for number, name in named if number)
    if outcome.retries:
        yield "1 retry" if outcome.retries == 1 else f"{outcome.retries} retries"
    if outcome.collections:
        yield f"garbage collected {count(outcome.collections, 'time')}"


def _fidelity(report: MemoryReport) -> str:
    """Say how well the replay matches the recording."""
    fidelity = report.fidelity
    if fidelity is None:
        return ""
    if not fidelity.exact:
        return "not exact: " + ", ".join(fidelity.misses)
    text = "exact: calls and reserved memory match the recording"
    return text + (
        f", and so do {fidelity.addresses} of {fidelity.allocations} addresses"
        if fidelity.allocations
        else ""
    )


def _largest(largest: LargestBatch) -> str:
    """Describe the largest batch that fits."""
    if not largest.batch:
        return "none fits, not even a batch of 1"
    text = f"{largest.batch} is the largest that fits"
    if 0 < largest.without_retries < largest.batch:
        text += f", {largest.without_retries} without a request that finds the GPU full"
    elif not largest.without_retries:
        text += ", with requests that find the GPU full"
    recorded = " and ".join(map(str, largest.recorded))
    reserved = binary_size(largest.outcome.peak_reserved)
    return f"{text}: {reserved} reserved. Sizes are estimated linearly from batches of {recorded}"


_COLUMNS = "reserved | change | retries | calls"


def _trials(report: MemoryReport) -> Table | None:
    """Return a row per setting after the run's own: the best, then those asked for, then the rest."""
    if not report.trials:
        return None
    failing = [trial for trial in report.trials if _does_fail(trial) and not trial.asked]
    running = [trial for trial in report.trials if not _does_fail(trial) or trial.asked]
    best, rest = running[:MAX_ROWS_SHOWN], running[MAX_ROWS_SHOWN:]
    if report.searched:
        best += [trial for trial in rest if trial.asked]
        rest = [trial for trial in rest if not trial.asked]
    rows = [_row(report.settings or "as in the run", report.baseline, report, _price(report.baseline))]
    rows += [_trial_row(trial, report) for trial in best]
    if failing:
        rows.append(_failing_row(failing))
    rows += [_trial_row(trial, report) for trial in rest]
    return table(
        "Settings",
        f"{_COLUMNS} | their time",
        rows,
        shown=1 + len(best) + bool(failing) if report.searched else -1,
        rest="settings that do no better",
    )


def _does_fail(trial: Trial) -> bool:
    """Whether a request fails under this setting."""
    return trial.outcome is not None and bool(failure(trial.outcome))


def _failing_row(trials: Sequence[Trial]) -> Row:
    """Return one row for all settings under which a request fails; JSON lists each."""
    if len(trials) == 1:
        return Row((trials[0].settings, failure(trials[0].outcome or Outcome()), "", "", "", ""), "bad")
    ends = [trial.outcome.done for trial in trials if trial.outcome is not None and trial.outcome.shortage]
    at = dict.fromkeys(percent(end) for end in (min(ends), max(ends))) if ends else {}
    where = f" at {'–'.join(at)}".replace(" %–", "–") if at else ""
    return Row((f"{len(trials)} other settings: out of memory{where}", "", "", "", "", ""), "bad")


def _trial_row(trial: Trial, report: MemoryReport) -> Row:
    """Return the row of one setting, marked if it is the best and better than the run."""
    if trial.outcome is None:
        return Row((f"{trial.settings}: {trial.note}", "", "", "", "", ""), "dim")
    name = f"{trial.settings} ({trial.note})" if trial.note else trial.settings
    best = report.best >= 0 and trial is report.trials[report.best]
    wins = report.lack is not None or report.time_of(trial.outcome) <= report.time_of(report.baseline)
    lower = trial.outcome.peak_reserved <= (1 - _MIN_SAVED_SHARE) * report.baseline.peak_reserved
    same = trial.outcome.retries == report.baseline.retries
    return _row(name, trial.outcome, report, _price(trial.outcome), best and (wins or (same and lower)))


def _price(outcome: Outcome) -> str:
    """Return the time of driver calls; ``-`` if there are none."""
    return duration(outcome.price) if outcome.price else "-"


def _remedies(report: MemoryReport) -> Table | None:
    """Return a table of other batch sizes or orders, each with the memory it needs."""
    rows = [
        _row(remedy.title, remedy.outcome, report, _elements(remedy.tokens), at == report.remedy)
        for at, remedy in enumerate(report.remedies)
        if remedy.outcome is not None
    ]
    return table(
        "Batches", f"{_COLUMNS} | elements", rows, shown=MAX_ROWS_SHOWN, rest="changes that do no better"
    )


def _elements(tokens: float) -> str:
    """Return the change in elements, ``+2.5 %``."""
    return f"{100 * tokens:+.1f} %" if abs(tokens) >= 0.0005 else "as many"


def _row(name: str, outcome: Outcome, report: MemoryReport, last: str, best: bool = False) -> Row:
    """Return peak, change, retries and calls of an outcome; `last` is the last cell."""
    why = failure(outcome)
    if why:
        return Row((name, why, "", "", "", ""), "bad")
    base = report.baseline
    more = ""
    if outcome is not base and base.peak_reserved and not failure(base):
        part = (outcome.peak_reserved - base.peak_reserved) / base.peak_reserved
        more = "0 %" if abs(part) < 0.0005 else f"{100 * part:+.1f} %"
    numbers = (binary_size(outcome.peak_reserved), more, str(outcome.retries), str(outcome.calls), last)
    return Row((name, *numbers), "good" if best else "")


def failure(outcome: Outcome) -> str:
    """Say where a replay fails; "" if it succeeds."""
    if outcome.shortage is not None:
        return f"fails at {percent(outcome.done)}"
    return f"out of memory, {count(outcome.failures, 'request')} failed" if outcome.failures else ""


def _growth(report: MemoryReport) -> Table:
    """List what is allocated in step after step and never freed."""
    rows = []
    for growth in report.growth:
        name, at, kind = owner_cells(
            Owner(line=growth.line, operator=growth.operator, kind=growth.kind, bytes=growth.bytes)
        )
        period = "every step" if growth.every == 1 else f"every {growth.every} steps"
        cells = (binary_size(growth.bytes), period, f"{growth.tensors:g}", str(growth.steps))
        rows.append(Row((name, at, kind, *cells)))
    columns = "<at | < | grows by | <how often | tensors | times"
    return table("What grows from step to step", columns, rows, shown=MAX_ROWS_SHOWN)
