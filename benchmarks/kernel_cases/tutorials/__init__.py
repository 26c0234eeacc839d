"""Kernels in the manner of Triton's tutorials and of what other libraries write, made for this."""

from __future__ import annotations

import importlib

from kernel_cases.tutorials import elements, products, rows

try:
    SHARED = importlib.import_module("kernel_cases.tutorials.gluon").CASES
except ImportError:  # Gluon came with Triton 3.5
    SHARED = []

PACKAGE, DISTRIBUTION = "kernel_cases.tutorials", ""
CASES = [*elements.CASES, *products.CASES, *rows.CASES, *SHARED]
