"""Numbers in words, the same in sentences and in reports."""

from __future__ import annotations

from fractions import Fraction


def number(value: float) -> str:
    """`value` as people write it: ``11``, ``2.5``, ``0.33``."""
    if value == int(value):
        return str(int(value))
    return f"{value:.1f}".removesuffix(".0") if value >= 1 else f"{value:.2g}"


def count(value: float, noun: str) -> str:
    """``1 wait``, ``3 waits``."""
    return f"{number(value)} {noun}{'' if value == 1 else 's'}"


def rate(per_step: float, noun: str = "wait", step: str = "step", each: str = "per") -> str:
    """How often in steps, as people say it: ``2.5 waits per step``, ``1 wait every 10 steps``, ``3 waits in
    10 steps``."""
    if per_step <= 0 or per_step >= 1:
        return f"{count(per_step, noun)} {each} {step}"
    part = Fraction(per_step).limit_denominator(1000)
    if part == 1:  # all but none of thousands
        return f"{count(1, noun)} {each} {step}"
    waits, steps = (part.numerator, part.denominator) if part else (1, round(1 / per_step))
    return f"{count(waits, noun)} {'every' if waits == 1 else 'in'} {steps} {step}s"


def in_column(per_step: float) -> str:
    """The same in a column that is named for the step: ``2.5``, ``1 in 10``."""
    if per_step <= 0 or per_step >= 1:
        return number(round(per_step, 2))
    part = Fraction(per_step).limit_denominator(1000)
    return f"{part.numerator} in {part.denominator}" if 0 < part < 1 else number(round(per_step, 2))


def three_digits(value: float) -> str:
    """`value` with three significant digits and no exponent: ``187``, ``18.3``, ``4.05``."""
    decimals = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def duration(ns: float) -> str:
    """Nanoseconds as people write them: ``4.1 µs``, ``18.3 ms``, ``1.21 s``."""
    for unit, length in (("s", 1e9), ("ms", 1e6)):
        if ns >= 0.9995 * length:
            return f"{three_digits(ns / length)} {unit}"
    return f"{three_digits(max(ns, 0) / 1e3)} µs"


def size(nbytes: int) -> str:
    """Bytes as people write them, powers of 1000: ``512 B``, ``12.3 GB``."""
    for unit, length in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= 0.9995 * length:
            return f"{three_digits(nbytes / length)} {unit}"
    return f"{max(nbytes, 0)} B"


def binary_size(nbytes: int) -> str:
    """Bytes as torch writes memory, powers of 1024: ``512 B``, ``139 MiB``, ``84.3 GiB``."""
    for unit, power in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes >= 0.9995 * (1 << power):
            return f"{three_digits(nbytes / (1 << power))} {unit}"
    return f"{max(nbytes, 0)} B"


def percent(fraction: float) -> str:
    """A part of a whole: ``9.8 %``, ``33 %``; what is no part of it is cut off at 0 and 100."""
    value = 100 * min(max(fraction, 0.0), 1.0)
    if 0 < value < 0.05:
        return "under 0.1 %"
    return f"{value:.0f} %" if value >= 9.95 or value == 0 else f"{value:.1f} %"
