"""The package as a whole."""

from __future__ import annotations

from gapless.emulation.standins.package import Package

PACKAGE = Package(
    "flash_attn",
    "flash-attn",
    "2.8.4",
    lacks="dropout draws different random numbers; flash_attn.modules, .models and .ops.fused_dense are "
    "missing",
    requests=("flash-attn", "flash_attention_2", "flash_attn_2", "flash_varlen", "use_flash_attention_2"),
    parts=("interface", "losses", "norms", "padding", "rotary"),
)
