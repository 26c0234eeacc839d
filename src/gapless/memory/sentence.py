"""What a report says in its first lines, and what it advises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gapless.memory.parts import told
from gapless.memory.trials import lowers_peak
from gapless.model.memory_answer import OutOfMemory
from gapless.model.memory_report import MemoryReport, Outcome, Remedy
from gapless.model.verdict import Change, Level, Verdict
from gapless.model.wording import binary_size, count, duration, percent

_OWNERS = 3
_DIGITS = 4
_MATTERS = 0.02
"""The share of the peak that a change must save to be named."""


def answer(report: MemoryReport) -> Verdict:
    """The first lines."""
    todo = tuple(_do_first(report))
    why = [*_why(report), *([report.advice] if report.advice and not todo else [])]
    level: Level = (
        "failed" if report.lack is not None else "act" if todo or report.baseline.retries else "fine"
    )
    return Verdict(
        sentence=report.sentence,
        level="unknown" if level == "fine" and not report.replayed else level,
        why=tuple(f"{one[:1].upper()}{one[1:]}" for one in why),
        do_first=todo,
        confidence=_confidence(report),
        not_seen=tuple(_not_seen(report)),
        per=f"needed of {binary_size(report.lack.has)}" if report.lack is not None else "",
    )


def _not_seen(report: MemoryReport) -> Iterator[str]:
    """What the recording does not show, and that there is more to try where nobody has said what to try."""
    if report.lack is not None and report.lack.least:
        yield "The recording does not say how much memory the GPU had left"
    if report.ended:
        yield "The recording ends with the request that failed: the run may need more after it"
    if report.replayed and report.lack is None and not report.searched and not report.trials:
        yield "Other settings of the allocator were not tried (`--search`)"


def sentence(report: MemoryReport) -> str:
    """The run in a sentence, without a full stop."""
    base, lack = report.baseline, report.lack
    if lack is not None:
        return _short(report, lack)
    if report.at_least:
        return _at_least(report)
    if base.peak_reserved and not report.allocations:
        held = f"{binary_size(base.peak_reserved)} reserved and {binary_size(base.peak_allocated)} allocated"
        return f"{held} when the snapshot was taken: the history before that was not recorded"
    where = f" of {binary_size(report.limit)} on the {report.gpu}" if report.gpu and report.limit >= 0 else ""
    peak = f"At most {binary_size(base.peak_reserved)} reserved{where}"
    peak += f", {binary_size(base.peak_allocated)} allocated"
    if base.retries:
        return f"{peak}; {count(base.retries, 'request')} found the GPU full and emptied the cache first"
    idle = base.peak_reserved - base.peak_allocated
    if base.peak_reserved and idle >= 0.05 * base.peak_reserved:
        seen = " in the profile" if report.origin == "profile" else ""
        peak += (
            f": {percent(idle / base.peak_reserved)} of the reserved memory was never in use at once{seen}"
        )
    return peak


def _short(report: MemoryReport, lack: OutOfMemory) -> str:
    """``Out of memory on GPU 1: asked for 139 MiB with 95.7 MiB free; …``."""
    needs, has = apart(lack.needs, lack.has)
    needs = f"at least {needs}" if lack.open else needs
    if not lack.recorded:
        whose = f"the {report.gpu} has" if report.gpu else "there are"
        return f"Does not fit: needs {needs}, {whose} {has}: {binary_size(lack.short)} short"
    at = f" at {lack.line.short}" if lack.line else ""
    free = f" with {binary_size(lack.free)} free" if lack.free >= 0 else ""
    had = f"has at least {has}" if lack.least else f"has {has}"
    short = f"{'up to ' if lack.least else ''}{binary_size(lack.short)} short"
    asked = f"asked for {binary_size(lack.asked)}{at}{free}"
    return f"Out of memory on GPU {report.device}: {asked}; {short} (needs {needs}, {had})"


def _at_least(report: MemoryReport) -> str:
    """A run that comes through what was recorded of it, which is not all."""
    whom = f" on the {report.gpu}" if report.gpu else ""
    room = f"Needs at least {binary_size(report.needs)} of {binary_size(report.limit)}{whom}"
    if report.ended:
        return f"{room}: the recorded run ended out of memory, and what it needs after that is not known"
    return f"{room}: memory was in use when recording began, and what came before is not known"


def apart(one: int, other: int) -> tuple[str, str]:
    """Two sizes in words, with as many digits as tell them apart."""
    first, second = binary_size(one), binary_size(other)
    if first != second or one == other:
        return first, second
    unit = first.rpartition(" ")[2]
    length = 1024 ** ("B", "KiB", "MiB", "GiB", "TiB").index(unit)
    for digits in range(2, _DIGITS + 1):
        first, second = f"{one / length:.{digits}f} {unit}", f"{other / length:.{digits}f} {unit}"
        if first != second:
            return first, second
    return f"{one:,} B", f"{other:,} B"


# Why ----------------------------------------------------------------------------------------------


def _why(report: MemoryReport) -> list[str]:
    lack = report.lack
    if lack is None:
        return []
    parts = told(report.failing or report.peak)
    found = [_room(lack), f"in use are {parts}" if parts else "", _holders(report)]
    if lack.unlimited > 1.01 * lack.needs:
        found.append(
            f"without a limit it would reserve at most {binary_size(lack.unlimited)}: the allocator "
            "releases the cached part when the GPU is full and requests it again later"
        )
    if lack.recorded and lack.free > lack.asked and lack.free > lack.short:
        found.append(
            f"{binary_size(lack.free)} were free on the device, so this process was limited to less "
            "(torch.cuda.set_per_process_memory_fraction, or a setting)"
        )
    return [one for one in found if one]


def _room(lack: OutOfMemory) -> str:
    held = f"{binary_size(lack.allocated)} of {binary_size(lack.reserved)} reserved were in use"
    if not lack.unusable:
        return held
    free, asked = f"{held}; {binary_size(lack.unusable)} were cached and unused", binary_size(lack.asked)
    if not lack.largest:
        return f"{free} but could not serve {asked}"
    at = f" requested at {lack.line.short}" if lack.line is not None and not lack.recorded else ""
    return f"{free}, in pieces too small for the {asked}{at} (the largest {binary_size(lack.largest)})"


def _holders(report: MemoryReport) -> str:
    """Who holds most when the request fails."""
    failing = report.failing
    held: Counter[str] = Counter()
    for one in failing.owners if failing is not None else ():
        unknown = "from before the recording" if one.before else "no stack"
        held[one.line.short if one.line else one.operator or unknown] += one.bytes
    told = [f"{place} {binary_size(size)}" for place, size in held.most_common(_OWNERS)]
    return f"most is held by {', '.join(told)}" if told else ""


def _confidence(report: MemoryReport) -> str:
    """How well the replay meets the recording."""
    if report.fidelity is None or not report.allocations:
        return ""
    if report.fidelity.exact:
        return "the replay matches the recording exactly"
    return f"the replay does not match the recording exactly: {', '.join(report.fidelity.misses)}"


# What to do ---------------------------------------------------------------------------------------


def _do_first(report: MemoryReport) -> Iterator[Change]:
    """Memory that is of no use, the one setting to take, then what only a name keeps alive at the peak."""
    yield from of_no_use(report)
    base = report.baseline
    best = report.trials[report.best] if report.best >= 0 else None
    chosen = report.remedies[report.remedy] if report.remedy >= 0 else best
    if chosen is not None and chosen.outcome is not None:
        what = chosen.title if isinstance(chosen, Remedy) else f"PYTORCH_CUDA_ALLOC_CONF={chosen.settings}"
        yield _chosen(what, chosen.outcome, report)
    elif report.advised and report.expandable is not None:
        lower = lowers_peak(report.expandable, base)
        yield Change(
            what=f"PYTORCH_CUDA_ALLOC_CONF={report.advised}{'' if lower else ' (calls to the driver)'}",
            before=base.peak_reserved if lower else base.price,
            after=report.expandable.peak_reserved if lower else report.expandable.price,
            unit="bytes" if lower else "ns",
        )
    yield from _deleted(report)


def _chosen(what: str, outcome: Outcome, report: MemoryReport) -> Change:
    """The setting to take, or other batches, by what it is for; where fewer retries take more of the driver's
    time, by that time."""
    base, lack = report.baseline, report.lack
    before, after = report.time_of(base), report.time_of(outcome)
    if lack is not None:
        return Change(what=what, before=lack.needs, after=outcome.peak_reserved, unit="bytes")
    if outcome.retries >= base.retries:
        return Change(what=what, before=base.peak_reserved, after=outcome.peak_reserved, unit="bytes")
    if after <= before:
        return Change(what=what, before=base.retries, after=outcome.retries, unit="retries")
    fewer = f"{base.retries} → {outcome.retries} retries, for more time in driver calls"
    return Change(what=f"{what} ({fewer})", before=before, after=after, unit="ns")


def of_no_use(report: MemoryReport) -> Iterator[Change]:
    """Graphs that no backward pass uses, and copies of a checkpoint, where less is reserved without them."""
    needs = report.lack.needs if report.lack is not None else report.baseline.peak_reserved
    worth = (1 - _MATTERS) * needs
    grown = {line for one in report.holders for line in one.lines}
    for graph in report.unused_graphs:
        if 0 <= graph.needs <= worth and graph.line not in grown:
            what = f"`torch.no_grad()` around the {'forward pass' if graph.training else 'evaluation'}"
            yield Change(
                what=what, line=graph.line, before=needs, after=graph.needs, unit="bytes", codes=("GAP409",)
            )
    for loaded in report.checkpoints:
        if 0 <= loaded.needs <= worth:
            what = '`map_location="cpu"` in `torch.load`'
            yield Change(
                what=what, line=loaded.line, before=needs, after=loaded.needs, unit="bytes", codes=("GAP410",)
            )


def _deleted(report: MemoryReport) -> Iterator[Change]:
    """What could be deleted by its name, where that leaves less to reserve."""
    lack = report.lack
    needs = lack.needs if lack is not None else report.baseline.peak_reserved
    for one in report.kept:
        if not (one.sure and one.name) or one.needs >= needs:
            continue
        what = f"`del {one.name}` after its last use"
        if one.needs < 0:  # too long to replay
            what, before, after = f"{what} (allocated)", one.before, one.after
        else:
            before, after = needs, one.needs
        yield Change(what=what, line=one.line, before=before, after=after, unit="bytes")


def advice(report: MemoryReport) -> str:
    """What to set, with numbers; that nothing helps; "" where nothing was tried."""
    base, lack = report.baseline, report.lack
    number = sum(one.outcome is not None for one in report.trials)
    tried = str(number) if lack is not None else count(number, "setting")
    if report.remedy >= 0:
        remedy = report.remedies[report.remedy]
        assert remedy.outcome is not None
        return f"Better: {remedy.title}: {gain(remedy.outcome, base, lack)}{cost(remedy)}"
    if report.best >= 0:
        best = report.trials[report.best]
        assert best.outcome is not None
        if lack is not None and lack.recorded:
            peak = binary_size(best.outcome.peak_reserved)
            return f"with {best.settings} it would have run: at most {peak} reserved"
        return f"Better with {best.settings}: {gain(best.outcome, base, lack)}"
    if lack is not None and not base.failures and base.shortage is None:
        return (
            "Cannot tell whether a setting would have helped: the memory available to this process changed "
            "during the run"
        )
    if not report.trials:
        return ""
    if report.remedies:
        tried += f", and {count(len(report.remedies), 'change')} of the batches"
    if lack is None:
        return f"None of {tried} is better than the run's own"
    less = f"What would help: {binary_size(lack.short)} less at the peak"
    in_pieces = lack.unusable and lack.allocated + lack.asked <= lack.has
    if in_pieces and lack.short <= lack.unusable:  # else what comes later does not fit either
        less = (
            f"The tensors alone would fit ({binary_size(lack.allocated + lack.asked)} with this one), but "
            f"memory is fragmented. What would help: {binary_size(lack.short)} more memory, or fewer "
            "different sizes"
        )
    if lack.afresh:
        return (
            f"No allocator setting helps from the start of the recording ({tried} tried); memory was "
            "already fragmented then, so it is unknown whether a setting from the start of the script "
            f"would help. Laid out again with {lack.afresh}, it fits: record from the start of the script "
            "to be sure"
        )
    return f"No allocator setting helps ({tried} tried). {less}"


def cost(remedy: Remedy) -> str:
    """What its longer batches cost."""
    return f", for {percent(remedy.tokens)} more elements in the batches" if remedy.tokens >= 0.0005 else ""


def gain(outcome: Outcome, base: Outcome, lack: OutOfMemory | None = None) -> str:
    """What `outcome` has over `base`, in words."""
    if lack is not None:
        return f"then it fits, with at most {binary_size(outcome.peak_reserved)} reserved"
    parts = []
    if outcome.retries != base.retries:
        parts.append(
            f"{outcome.retries} instead of {count(base.retries, 'retry').replace('retrys', 'retries')}"
        )
    saved = base.peak_reserved - outcome.peak_reserved
    if base.peak_reserved and abs(saved) >= 0.01 * base.peak_reserved:
        word = "less" if saved > 0 else "more"
        parts.append(
            f"{binary_size(abs(saved))} ({percent(abs(saved) / base.peak_reserved)}) {word} reserved"
        )
    time = base.price - outcome.price
    if abs(time) >= 1_000_000:
        word = "less" if time > 0 else "more"
        parts.append(f"{duration(abs(time))} {word} in driver calls")
    return ", ".join(parts) or "the same"
