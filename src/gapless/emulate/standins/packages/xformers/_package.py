"""The package as a whole."""

from __future__ import annotations

from gapless.emulate.standins.package import Package

PACKAGE = Package(
    "xformers",
    "xformers",
    "0.0.35",
    lacks="paged and padded attention biases, sparsity and the fused parallel layers are missing",
    parts=("attention", "biases", "layers"),
)
