"""The package as a whole."""

from __future__ import annotations

from gapless.emulation.standins.package import Package

PACKAGE = Package(
    "mamba_ssm",
    "mamba-ssm",
    "2.3.2",
    lacks="complex states, Mamba3, generation, and the models around the layers are missing",
    requests=("mamba-ssm", "use_mamba_kernels"),
    parts=("chunks", "layers", "norms", "scan"),
)
