"""The package as a whole."""

from __future__ import annotations

from gapless.emulation.standins.package import Package

PACKAGE = Package(
    "xformers",
    "xformers",
    "0.0.35",
    lacks="paged and padded attention biases, sparsity and the fused parallel layers are missing",
    requests=(
        "enable_xformers_memory_efficient_attention",
        "set_use_memory_efficient_attention_xformers",
        "use_xformers",
    ),
    parts=("attention", "biases", "layers"),
)
