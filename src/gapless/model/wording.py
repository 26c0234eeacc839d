"""Format numbers in words, the same way in sentences and in reports."""

from __future__ import annotations

import re
from fractions import Fraction

from gapless.model.programme import HostSpeed

PARTS = (
    ("kernel", "kernels"),
    ("communication", "communication"),
    ("memcpy", "copies"),
    ("memset", "memset"),
    ("runtime", "runtime calls"),
    ("loading", "data loading"),
    ("host", "CPU operators"),
    ("other", "other"),
)
"""The fields of a `Split` with their names in reports."""
CAUSES = {
    "wait": "syncs",
    "input": "no input",
    "launch": "launch-bound",
    "host": "CPU busy",
    "allocator": "allocator",
    "communication": "communication",
    "graph": "driver",
    "profiler": "profiler",
    "unknown": "unexplained",
}
"""Names of the causes of an idle GPU."""
TENSORS = {
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
    "checkpoint": "loaded checkpoint",
    "unknown": "unknown",
}
"""Names of the kinds of tensors."""
WHEN = {
    "every-step": "in every step",
    "some-steps": "in some steps",
    "no-steps": "in the whole run",
    "evaluation": "in evaluation",
    "first-step": "in the first step",
    "set-up": "in set-up",
    "phase": "between steps",
    "after": "after the last step",
}
LIMITS = {
    "host": "the CPU's own work is the limit",
    "device": "the GPU's own work is the limit",
    "copies": "copies between CPU and GPU are the limit",
    "input": "the data loader is the limit",
    "peers": "the other ranks are the limit",
}
"""What limits the steps once no sync does."""
ASSUMED = {
    "pinned": "with copies from and to pinned memory",
    "input": "with every batch on time",
    "graphs": "with one launch per step",
}
"""What each `--what-if` assumes."""


def number(value: float) -> str:
    """Format a number as people write it: ``11``, ``2.5``, ``0.33``."""
    if value == int(value):
        return str(int(value))
    return f"{value:.1f}".removesuffix(".0") if value >= 1 else f"{value:.2g}"


def count(value: float, noun: str) -> str:
    """Format a number with its noun: ``1 wait``, ``3 waits``."""
    return f"{number(value)} {noun}{'' if value == 1 else 's'}"


_STEP = re.compile(
    r"(?<![\w.`/\-])(?<!denoising )(?P<training>training )?(?:steady )?step(?P<many>s?)(?![\w(.`/=\-]|:\d)"
)
_CODE = re.compile(r"(`[^`]*`)")


def rename_steps(text: str, noun: str) -> str:
    """Return `text` with "step" replaced by `noun`, the name of the run's iterations; code stays unchanged.

    >>> rename_steps("no syncs in 10 training steps (`--steps all`)", "batch")
    'no syncs in 10 batches (`--steps all`)'
    """
    if noun == "step":
        return text
    plural = f"{noun}es" if noun.endswith(("ch", "s")) else f"{noun}s"
    parts = _CODE.split(text)
    replaced = "".join(
        part if part.startswith("`") else _STEP.sub(lambda match: plural if match["many"] else noun, part)
        for part in parts
    )
    return re.sub(
        r"of each token\b(?!')", "of each token's time", replaced.replace("in every token", "for every token")
    )


def rate(per_step: float, noun: str = "wait", step: str = "step", each: str = "per") -> str:
    """Format a rate: ``2.5 waits per step``, ``1 wait every 10 steps``, ``3 waits in 10 steps``."""
    if per_step <= 0 or per_step >= 1:
        return f"{count(per_step, noun)} {each} {step}"
    part = Fraction(per_step).limit_denominator(1000)
    if part == 1:  # all but none of thousands
        return f"{count(1, noun)} {each} {step}"
    waits, steps = (part.numerator, part.denominator) if part else (1, round(1 / per_step))
    return f"{count(waits, noun)} {'every' if waits == 1 else 'in'} {steps} {step}s"


def describe_phase(when: str, phase: str = "", times: int = 0, apart: int = 0) -> str:
    """Describe when waits outside of steps happen: ``in set-up``, ``at each evaluation (every 500 steps)``,
    ``in the one rollout seen``. `times` of the phase were seen, `apart` steps from each other.
    """
    if not times:
        return WHEN[when]
    if times == 1 and not apart:
        return f"in the one {phase} seen"
    if not apart:
        return f"at each {phase}"
    return f"at each {phase} ({'every step' if apart == 1 else f'every {apart} steps'})"


def rate_in_column(per_step: float) -> str:
    """Format a rate for a column headed "per step": ``2.5``, ``1 in 10``."""
    if per_step <= 0 or per_step >= 1:
        return number(round(per_step, 2))
    part = Fraction(per_step).limit_denominator(1000)
    return f"{part.numerator} in {part.denominator}" if 0 < part < 1 else number(round(per_step, 2))


def three_digits(value: float) -> str:
    """Format with three significant digits and no exponent: ``187``, ``18.3``, ``4.05``."""
    decimals = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


_MIN_MONEY = 0.0001
"""Smallest amount of money whose digits are shown."""


def money(value: float) -> str:
    """Format an amount of money with the digits that matter: ``0.042``, ``1.80``, ``1,234``."""
    if value >= 100:
        return f"{value:,.0f}"
    if 0 < value < _MIN_MONEY:
        return f"<{_MIN_MONEY:.4f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.2g}" if value else "0"


def three_figures(value: float) -> str:
    """Format with three significant digits, however large: ``195,000``, ``3,050``, ``12.5``."""
    if value < 999.5:
        return three_digits(value)
    grain = 10 ** (len(str(round(value))) - 3)
    return f"{round(value / grain) * grain:,}"


def duration(ns: float) -> str:
    """Format nanoseconds: ``4.1 µs``, ``18.3 ms``, ``1.21 s``."""
    for unit, length in (("s", 1e9), ("ms", 1e6)):
        if ns >= 0.9995 * length:
            return f"{three_digits(ns / length)} {unit}"
    return f"{three_digits(max(ns, 0) / 1e3)} µs"


def span(ns: float) -> str:
    """Format a time that people wait for: ``18.3 ms``, ``42 s``, ``2.9 min``, ``7.5 h``, ``3.1 days``."""
    for unit, seconds, least in (("days", 86_400, 172_800), ("h", 3_600, 5_400), ("min", 60, 90)):
        if ns >= least * 1e9:
            return f"{three_digits(ns / seconds / 1e9)} {unit}"
    return duration(ns)


def spans(least: float, most: float) -> str:
    """Format an interval of such times: ``2–4 min``; with both units if they differ."""
    low, _, unit = span(_two_digits(least)).rpartition(" ")
    high, _, high_unit = span(_two_digits(most)).rpartition(" ")
    return f"{low}–{high} {unit}" if unit == high_unit else f"{low} {unit} – {high} {high_unit}"


_MAX_NARROW_RATIO = 1.2
"""Ends of an interval wider than this factor get two digits only."""


def duration_range(least: float, most: float) -> str:
    """Format an interval in nanoseconds, in one unit if readable: ``1.8–5.3 ms``, ``0.87–3.1 ms``, ``13 µs–2
    ms``.

    The numbers are no more exact than the interval is wide.
    """
    if most > _MAX_NARROW_RATIO * least:
        least, most = _two_digits(least), _two_digits(most)
    high = duration(most)
    length = {"s": 1e9, "ms": 1e6, "µs": 1e3}[high.rpartition(" ")[2]]
    low = three_digits(least / length) if least >= length / 10 or not least else duration(least)
    return f"{low.removesuffix(' µs') if length == 1e3 else low}–{high}"


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")


def size(nbytes: int) -> str:
    """Format bytes in powers of 1000: ``512 B``, ``12.3 GB``."""
    for unit, length in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= 0.9995 * length:
            return f"{three_digits(nbytes / length)} {unit}"
    return f"{max(nbytes, 0)} B"


def binary_size(nbytes: float) -> str:
    """Format bytes in powers of 1024, as torch does: ``512 B``, ``139 MiB``, ``84.3 GiB``."""
    for unit, power in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes >= 0.9995 * (1 << power):
            return f"{three_digits(nbytes / (1 << power))} {unit}"
    return f"{max(int(nbytes), 0)} B"


def binary_size_range(least: float, most: float) -> str:
    """Format a range of sizes: ``0.53–1.49 GiB``, ``900 MiB–1.2 GiB``."""
    unit = unit_of(most)
    return f"{in_unit(least, unit) if unit_of(least) == unit else binary_size(least)}–{binary_size(most)}"


def unit_of(nbytes: float) -> str:
    """Return the unit in which :func:`binary_size` writes `nbytes`."""
    return binary_size(nbytes).rpartition(" ")[2]


def in_unit(nbytes: float, unit: str) -> str:
    """Format `nbytes` in `unit` without writing it: ``12.6`` for GiB."""
    length = 1024 ** ("B", "KiB", "MiB", "GiB", "TiB").index(unit)
    return three_digits(nbytes / length)


def percent(fraction: float) -> str:
    """Format a fraction of a whole: ``9.8 %``, ``33 %``; limited to 0 to 100 %."""
    value = 100 * min(max(fraction, 0.0), 1.0)
    if 0 < value < 0.05:
        return "under 0.1 %"
    return f"{value:.0f} %" if value >= 9.95 or value == 0 else f"{value:.1f} %"


def describe_host(speed: HostSpeed) -> str:
    """Describe whose CPU an estimate is for: ``this machine's: 0.8 × the usual time``."""
    whose = "this machine's" if speed.measured else "as given"
    return f"{whose}: {speed.factor:.2g} × the usual time"


_SINGULAR = {"syncs": "sync", "retries": "retry"}


def describe_change(before: float, after: float, unit: str, bound: bool = False) -> str:
    """Format a change: ``8.8 → 1.9 ms``, ``89.4 → 71.0 GiB``, ``7 → 0 syncs``; "" if either is unknown (below
    0).

    With `bound` the second is the least possible: ``4.7 → 4.3 ms at best``.
    """
    if before < 0 or after < 0:
        return ""
    best = " at best" if bound else ""
    if unit in ("syncs", "retries"):
        after = round(after, 2)
        return f"{number(before)} → {number(after)} {_SINGULAR[unit] if after == 1 else unit}{best}"
    format_value = duration if unit == "ns" else binary_size
    was, now = format_value(before), format_value(after)
    if was == now and after < before:  # more digits than usual, where they are what tells the two apart
        return f"{was} → {now}, {format_value(before - after)} less{best}"
    amount, _, scale = was.rpartition(" ")
    return f"{amount if now.endswith(' ' + scale) else was} → {now}{best}"


def each_time(every: int) -> str:
    """Format an interval of steps: ``in every step``, ``every 5 steps``."""
    return "in every step" if every <= 1 else f"every {every} steps"
