"""How a memory report puts things, the same in a terminal and on a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gapless.model.memory import Kept, LargestBatch, MemoryReport, Moment, Outcome, Owner, Trial
from gapless.model.memory_answer import OtherDevice
from gapless.model.wording import binary_size, count, duration, percent

KINDS = {
    "parameter": "weights",
    "gradient": "gradients",
    "optimizer": "optimizer",
    "activation": "activations",
    "kept": "kept over",
    "temporary": "temporaries",
    "forward": "forward",
    "backward": "backward",
    "batch": "batches",
    "workspace": "workspaces",
    "communication": "NCCL",
    "unknown": "unknown",
}
CHAIN = " > "
"""Between the calls that lead to a module, where its path is not known."""
_LINKS = 3
Naming = Callable[[str], str]
"""A file's path as it is shown."""


def advice(made: MemoryReport) -> tuple[str, str]:
    """What to change, in words and as the settings to write; "" where nothing is to be said."""
    if made.remedy >= 0:
        return made.advice, made.remedies[made.remedy].settings
    if made.best >= 0:
        settings = made.trials[made.best].settings
        gain = made.advice.removeprefix(f"Better with {settings}: ")
        return gain if gain == made.advice else f"Better with other settings: {gain}", settings
    return made.advice, ""


def why(made: MemoryReport) -> str:
    """The evidence, each part a sentence."""
    return " ".join(f"{one[0].upper()}{one[1:]}." for one in made.answer.why)


def other(one: OtherDevice) -> str:
    """Another device of the file, in a line."""
    told = f"{count(one.failures, 'request')} failed" if one.failures else "no request failed"
    return (
        f"GPU {one.device}: at most {binary_size(one.peak_reserved)} reserved, {told} (--device {one.device})"
    )


def moment(made: MemoryReport) -> str:
    """The moment whose owners are shown."""
    return "At the peak" if made.failing is None else "When the request failed"


def failed(outcome: Outcome) -> str:
    """That a replay does not come through; "" where it does."""
    if outcome.shortage is not None:
        return f"out of memory after {percent(outcome.done)}"
    return f"out of memory, {count(outcome.failures, 'request')} failed" if outcome.failures else ""


def more(trials: Sequence[Trial]) -> str:
    """How many of the settings that are not shown do not come through."""
    number = sum(one.outcome is not None and bool(failed(one.outcome)) for one in trials)
    return f", {number} of them out of memory" if number else ""


def what(made: MemoryReport, path: Naming) -> str:
    """What was replayed."""
    parts = [count(made.allocations, "allocation")]
    if made.steps:
        parts.append(count(made.steps, "step"))
    if made.span >= 0:
        parts.append(duration(made.span))
    parts.append(f"device {made.device}")
    parts.append(made.settings or "default settings")
    return " · ".join([*parts, path(made.path)] if made.path else parts)


def when(moment: Moment, made: MemoryReport) -> str:
    """Where in the run a moment is."""
    if moment.event < 0:
        return "as recording begins" if made.events else "as the snapshot was taken"
    asked = f", in {moment.operator}" if made.origin == "profile" and moment.operator else ""
    if made.steps:
        return f"in step {moment.step + 1} of {max(made.steps, moment.step + 1)}{asked}"
    return f"event {moment.event + 1} of {made.events}{asked}"


def place(one: Owner, path: Naming) -> str:
    """Who holds memory: the module and the line, else the operator."""
    line = one.line
    if line is None:
        nobody = "no Python stack, as in backward" if one.threaded else "no stack recorded"
        return module(one) or one.operator or ("from before the recording" if one.before else nobody)
    at = f"{short(line.file, path)}:{line.line}"
    told = module(one, f"{line.file.replace(chr(92), '/').rpartition('/')[2]}:{line.line}")
    what = one.operator.removeprefix("aten::")
    of = f" ({what})" if one.operators < 2 else f" ({what}, …)"
    of = of if what and (one.module or not line.is_user) else ""
    if not told or CHAIN in told or ":" in told:  # calls, of which the line is the last
        return f"{at} {line.function}{of}" + (f"  in {told}" if told else "")
    return f"{told}  {at}{of}"


def module(one: Owner, at: str = "") -> str:
    """The module, with how many there are; of a chain the last links, without the line `at` itself."""
    links = one.module.split(CHAIN)
    if links[-1] == at:
        links.pop()
    told = chain(links[-_LINKS:])
    return f"{told} ×{one.modules}" if one.modules > 1 and "*" in told else told


def chain(links: Sequence[str]) -> str:
    """Links of a chain, each file named once: ``model.py:244 > 200``."""
    told: list[str] = []
    before = ""
    for link in links:
        file, _, line = link.rpartition(":")
        told.append(line if file and file == before else link)
        before = file
    return CHAIN.join(told)


def parts(moment: Moment, most: int = 5) -> list[str]:
    """The parts of the model that hold most, each with its share; none where all is one part."""
    total = sum(moment.kinds.values())
    told = [
        f"{chain(one.module.split(CHAIN))}{f' ×{one.modules}' if '*' in one.module else ''} "
        f"{share(one.bytes / total)}"
        for one in moment.modules[:most]
        if total
    ]
    rest = total - sum(one.bytes for one in moment.modules)
    if len(moment.modules) < 2:
        return []
    more = sum(one.bytes for one in moment.modules[most:])
    told += [f"{len(moment.modules) - most} more {share(more / total)}"] if more else []
    return [*told, f"outside of modules {share(rest / total)}"] if rest > 0 else told


def kept(one: Kept, path: Naming) -> str:
    """What a name keeps, and what to do."""
    at = f"{short(one.line.file, path)}:{one.line.line}" if one.line else one.operator
    what = f"{one.name} ({at})" if one.name else f"the result of {at}"
    change = f"{binary_size(one.before)} → {binary_size(one.after)}"
    gain = f"saves {binary_size(one.saves)} at the peak ({change})"
    act = f"del {one.name}" if one.name else "letting go of it"
    if one.sure:
        return f"nothing uses {what} any more when the peak comes: {act} after the last use {gain}"
    return (
        f"{what} outlives its step until the next one assigns it anew: if that does not use it, {act} at the "
        f"end of the step {gain}"
    )


def short(file: str, path: Naming) -> str:
    """The path from the working directory, or its last two parts."""
    shown = path(file)
    if shown != file:
        return shown
    return "/".join(file.replace("\\", "/").split("/")[-2:])


def share(part: float) -> str:
    return "<0.1 %" if part < 0.0005 else percent(part)


def idle(height: Moment) -> str:
    """What is reserved and not used when most is reserved."""
    if not height.free:
        return "nothing: all that is reserved is in use when most is"
    pieces = f"in {count(height.free_blocks, 'piece')}, the largest {binary_size(height.largest)}"
    if height.free_blocks == 1:
        pieces = "in one piece"
    told = f"{binary_size(height.free)} of {binary_size(height.reserved)} when most is reserved"
    told += f", {pieces}" if height.free_blocks else ""  # a profile does not tell the pieces
    if height.small:
        told += f" ({binary_size(height.small)} of it for requests up to 1 MiB)"
    if height.slack:
        told += f"; rounding takes {binary_size(height.slack)}"
    return told


def calls(made: MemoryReport) -> str:
    """What was asked of the driver, and its price."""
    base = made.baseline
    parts = call_counts(base)
    if not parts:
        return "none: the cache serves every request"
    times = "by this run's own times" if made.times.source == "measured" else "at typical times"
    of = f", {percent(base.price / made.span)} of the run" if made.span > 0 else ""
    price = f"about {duration(base.price)} {times}{of}"
    if base.retries and made.replayed:
        drain = made.times.drain
        price += (
            f"; {duration(base.retries * drain)} of it the GPU drains before a retry"
            if drain >= 0
            else "; how long the GPU drains before each retry is not known and comes on top"
        )
    return ", ".join([*parts, price])


def call_counts(outcome: Outcome) -> list[str]:
    named = (
        (outcome.mallocs, "cudaMalloc"),
        (outcome.frees, "cudaFree"),
        (outcome.maps, "mapped"),
        (outcome.unmaps, "unmapped"),
    )
    parts = [f"{number} {name}" for number, name in named if number]
    if outcome.retries:
        parts.append("1 retry" if outcome.retries == 1 else f"{outcome.retries} retries")
    if outcome.collections:
        parts.append(f"garbage collected {outcome.collections} times")
    return parts


def fidelity(made: MemoryReport) -> str:
    """How well the replay meets what was recorded; "" where nothing is to compare."""
    one = made.fidelity
    if one is None:
        return ""
    if not one.exact:
        return "not exact: " + ", ".join(one.misses)
    told = "exact: calls and reserved memory are as recorded"
    if one.allocations:
        told += f", {one.addresses} of {one.allocations} addresses too"
    return told


def largest(one: LargestBatch) -> str:
    """The largest batch that fits."""
    if not one.batch:
        return "none fits, not even one of 1"
    told = f"{one.batch} at most fits"
    if 0 < one.without_retries < one.batch:
        told += f", {one.without_retries} without a request that finds the GPU full"
    elif not one.without_retries:
        told += ", with requests that find the GPU full"
    recorded = " and ".join(map(str, one.recorded))
    told += (
        f": {binary_size(one.outcome.peak_reserved)} reserved. Sizes lie on a straight line through batches "
    )
    return f"{told}of {recorded}"


def change(outcome: Outcome, base: Outcome) -> str:
    """By how much the peak differs; "" where that says nothing."""
    if outcome is base or not base.peak_reserved or failed(base):
        return ""
    part = (outcome.peak_reserved - base.peak_reserved) / base.peak_reserved
    return "0 %" if abs(part) < 0.0005 else f"{100 * part:+.1f} %"


def elements(tokens: float) -> str:
    """How many more elements a remedy has."""
    return f"{100 * tokens:+.1f} %" if abs(tokens) >= 0.0005 else "as many"
