"""The package as a whole."""

from __future__ import annotations

from gapless.emulation.standins.package import Package

PACKAGE = Package(
    "apex",
    "apex",
    "0.1",
    lacks="apex.amp and apex.contrib refuse or are missing",
    requests=("adamw_apex_fused", "apex_fused"),
    parts=("amp", "dense", "norms", "optimizers"),
)
