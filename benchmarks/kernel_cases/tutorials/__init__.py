"""Kernels in the manner of Triton's tutorials and of what other libraries write, made for this."""

from __future__ import annotations

from kernel_cases.tutorials import elements, products, rows

PACKAGE, DISTRIBUTION = "kernel_cases.tutorials", ""
CASES = [*elements.CASES, *products.CASES, *rows.CASES]
