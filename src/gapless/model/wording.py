"""Numbers in words, the same in sentences and in reports."""

from __future__ import annotations


def number(value: float) -> str:
    """`value` as people write it: ``11``, ``2.5``, ``0.33``."""
    if value == int(value):
        return str(int(value))
    return f"{value:.1f}".removesuffix(".0") if value >= 1 else f"{value:.2g}"


def count(value: float, noun: str) -> str:
    """``1 wait``, ``3 waits``."""
    return f"{number(value)} {noun}{'' if value == 1 else 's'}"
