"""Write the first lines of a report, and its advice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gapless.memory.parts import describe_parts
from gapless.memory.trials import lowers_peak
from gapless.model.memory_answer import OutOfMemory
from gapless.model.memory_report import MemoryReport, Outcome, Remedy
from gapless.model.verdict import Change, Level, Verdict
from gapless.model.wording import binary_size, count, duration, percent

_MAX_OWNERS_NAMED = 3
"""Lines that hold most when a request fails."""
_MAX_DIGITS = 4
"""Decimals used to tell two sizes apart."""
_MIN_SHARE_TO_REPORT = 0.02
"""The share of the peak that a change must save to be named."""


def answer(report: MemoryReport) -> Verdict:
    """Return the verdict: the first lines of the report."""
    todo = tuple(_do_first(report))
    why = [*_reasons_for_shortage(report), *([report.advice] if report.advice and not todo else [])]
    level: Level = (
        "failed" if report.lack is not None else "act" if todo or report.baseline.retries else "fine"
    )
    return Verdict(
        sentence=report.sentence,
        level="unknown" if level == "fine" and not report.replayed else level,
        why=tuple(f"{reason[:1].upper()}{reason[1:]}" for reason in why),
        do_first=todo,
        confidence=_confidence(report),
        not_seen=tuple(_not_seen(report)),
        per=f"needed of {binary_size(report.lack.has)}" if report.lack is not None else "",
    )


def _not_seen(report: MemoryReport) -> Iterator[str]:
    """Yield what the recording does not show, and that no settings were tried."""
    if report.lack is not None and report.lack.least:
        yield "The recording does not say how much memory the GPU had left"
    if report.ended:
        yield "The recording ends with the request that failed: the run may need more after it"
    if report.replayed and report.lack is None and not report.searched and not report.trials:
        yield "Other settings of the allocator were not tried (`--search`)"


def sentence(report: MemoryReport) -> str:
    """Return the run in one sentence, without a full stop."""
    base, lack = report.baseline, report.lack
    if lack is not None:
        return _describe_shortage(report, lack)
    if report.at_least:
        return _describe_partial(report)
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
        in_profile = " in the profile" if report.origin == "profile" else ""
        share = percent(idle / base.peak_reserved)
        peak += f": {share} of the reserved memory was never in use at once{in_profile}"
    return peak


def _describe_shortage(report: MemoryReport, lack: OutOfMemory) -> str:
    """Return ``Out of memory on GPU 1: asked for 139 MiB with 95.7 MiB free; …``, or ``Does not fit: …``."""
    needs, has = format_different_sizes(lack.needs, lack.has)
    needs = f"at least {needs}" if lack.open else needs
    if not lack.recorded:
        whose = f"the {report.gpu} has" if report.gpu else "there are"
        return f"Does not fit: needs {needs}, {whose} {has}: {binary_size(lack.short)} short"
    at = f" at {lack.line.short}" if lack.line else ""
    free = f" with {binary_size(lack.free)} free" if lack.free >= 0 else ""
    had = f"has at least {has}" if lack.least else f"has {has}"
    short = f"{'up to ' if lack.least else ''}{binary_size(lack.short)} short"
    request = f"asked for {binary_size(lack.asked)}{at}{free}"
    return f"Out of memory on GPU {report.device}: {request}; {short} (needs {needs}, {had})"


def _describe_partial(report: MemoryReport) -> str:
    """Describe a run that fits, but whose recording shows only a part of it."""
    whom = f" on the {report.gpu}" if report.gpu else ""
    room = f"Needs at least {binary_size(report.needs)} of {binary_size(report.limit)}{whom}"
    if report.ended:
        return f"{room}: the recorded run ended out of memory, and what it needs after that is not known"
    return f"{room}: memory was in use when recording began, and what came before is not known"


def format_different_sizes(size: int, second_size: int) -> tuple[str, str]:
    """Format two sizes with enough digits to tell them apart."""
    first, second = binary_size(size), binary_size(second_size)
    if first != second or size == second_size:
        return first, second
    unit = first.rpartition(" ")[2]
    length = 1024 ** ("B", "KiB", "MiB", "GiB", "TiB").index(unit)
    for digits in range(2, _MAX_DIGITS + 1):
        first, second = f"{size / length:.{digits}f} {unit}", f"{second_size / length:.{digits}f} {unit}"
        if first != second:
            return first, second
    return f"{size:,} B", f"{second_size:,} B"


# Why ----------------------------------------------------------------------------------------------


def _reasons_for_shortage(report: MemoryReport) -> list[str]:
    lack = report.lack
    if lack is None:
        return []
    parts = describe_parts(report.failing or report.peak)
    reasons = [_describe_cached(lack), f"in use are {parts}" if parts else "", _describe_holders(report)]
    if lack.unlimited > 1.01 * lack.needs:
        reasons.append(
            f"without a limit it would reserve at most {binary_size(lack.unlimited)}: the allocator "
            "releases the cached part when the GPU is full and requests it again later"
        )
    if lack.recorded and lack.free > lack.asked and lack.free > lack.short:
        reasons.append(
            f"{binary_size(lack.free)} were free on the device, so this process was limited to less "
            "(torch.cuda.set_per_process_memory_fraction, or a setting)"
        )
    return [reason for reason in reasons if reason]


def _describe_cached(lack: OutOfMemory) -> str:
    held = f"{binary_size(lack.allocated)} of {binary_size(lack.reserved)} reserved were in use"
    if not lack.unusable:
        return held
    free, request = f"{held}; {binary_size(lack.unusable)} were cached and unused", binary_size(lack.asked)
    if not lack.largest:
        return f"{free} but could not serve {request}"
    at = f" requested at {lack.line.short}" if lack.line is not None and not lack.recorded else ""
    return f"{free}, in pieces too small for the {request}{at} (the largest {binary_size(lack.largest)})"


def _describe_holders(report: MemoryReport) -> str:
    """Say which lines hold most when the request fails; "" if unknown."""
    failing = report.failing
    held: Counter[str] = Counter()
    for owner in failing.owners if failing is not None else ():
        unknown = "from before the recording" if owner.before else "no stack"
        held[owner.line.short if owner.line else owner.operator or unknown] += owner.bytes
    named = [f"{place} {binary_size(size)}" for place, size in held.most_common(_MAX_OWNERS_NAMED)]
    return f"most is held by {', '.join(named)}" if named else ""


def _confidence(report: MemoryReport) -> str:
    """Say how well the replay matches the recording."""
    if report.fidelity is None or not report.allocations:
        return ""
    if report.fidelity.exact:
        return "the replay matches the recording exactly"
    return f"the replay does not match the recording exactly: {', '.join(report.fidelity.misses)}"


# What to do ---------------------------------------------------------------------------------------


def _do_first(report: MemoryReport) -> Iterator[Change]:
    """Yield the changes to make: useless memory first, then the best setting, then names that hold memory."""
    yield from useless_memory(report)
    base = report.baseline
    best = report.trials[report.best] if report.best >= 0 else None
    chosen = report.remedies[report.remedy] if report.remedy >= 0 else best
    if chosen is not None and chosen.outcome is not None:
        change = chosen.title if isinstance(chosen, Remedy) else f"PYTORCH_CUDA_ALLOC_CONF={chosen.settings}"
        yield _best_change(change, chosen.outcome, report)
    elif report.advised and report.expandable is not None:
        lower = lowers_peak(report.expandable, base)
        yield Change(
            what=f"PYTORCH_CUDA_ALLOC_CONF={report.advised}{'' if lower else ' (calls to the driver)'}",
            before=base.peak_reserved if lower else base.price,
            after=report.expandable.peak_reserved if lower else report.expandable.price,
            unit="bytes" if lower else "ns",
        )
    yield from _deletable_names(report)


def _best_change(change: str, outcome: Outcome, report: MemoryReport) -> Change:
    """Return the change for the best setting or batches, in the unit it improves.

    If fewer retries cost more driver time, that time is the unit.
    """
    base, lack = report.baseline, report.lack
    before, after = report.time_of(base), report.time_of(outcome)
    if lack is not None:
        return Change(what=change, before=lack.needs, after=outcome.peak_reserved, unit="bytes")
    if outcome.retries >= base.retries:
        return Change(what=change, before=base.peak_reserved, after=outcome.peak_reserved, unit="bytes")
    if after <= before:
        return Change(what=change, before=base.retries, after=outcome.retries, unit="retries")
    fewer = f"{base.retries} → {outcome.retries} retries, for more time in driver calls"
    return Change(what=f"{change} ({fewer})", before=before, after=after, unit="ns")


def useless_memory(report: MemoryReport) -> Iterator[Change]:
    """Yield unused graphs and checkpoint copies without which less memory is reserved."""
    needs = report.lack.needs if report.lack is not None else report.baseline.peak_reserved
    worth = (1 - _MIN_SHARE_TO_REPORT) * needs
    grown = {line for holder in report.holders for line in holder.lines}
    for graph in report.unused_graphs:
        if 0 <= graph.needs <= worth and graph.line not in grown:
            change = f"`torch.no_grad()` around the {'forward pass' if graph.training else 'evaluation'}"
            yield Change(
                what=change, line=graph.line, before=needs, after=graph.needs, unit="bytes", codes=("GAP409",)
            )
    for loaded in report.checkpoints:
        if 0 <= loaded.needs <= worth:
            change = '`map_location="cpu"` in `torch.load`'
            yield Change(
                what=change,
                line=loaded.line,
                before=needs,
                after=loaded.needs,
                unit="bytes",
                codes=("GAP410",),
            )


def _deletable_names(report: MemoryReport) -> Iterator[Change]:
    """Yield variables whose deletion lowers the reserved memory."""
    lack = report.lack
    needs = lack.needs if lack is not None else report.baseline.peak_reserved
    for item in report.kept:
        if not (item.sure and item.name) or item.needs >= needs:
            continue
        change = f"`del {item.name}` after its last use"
        if item.needs < 0:  # too long to replay
            change, before, after = f"{change} (allocated)", item.before, item.after
        else:
            before, after = needs, item.needs
        yield Change(what=change, line=item.line, before=before, after=after, unit="bytes")


def advice(report: MemoryReport) -> str:
    """Return what to set, with numbers; that nothing helps; "" if nothing was tried."""
    base, lack = report.baseline, report.lack
    number = sum(trial.outcome is not None for trial in report.trials)
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
    """Say how many more elements the longer batches of `remedy` have."""
    return f", for {percent(remedy.tokens)} more elements in the batches" if remedy.tokens >= 0.0005 else ""


def gain(outcome: Outcome, base: Outcome, lack: OutOfMemory | None = None) -> str:
    """Describe how `outcome` improves on `base`."""
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
