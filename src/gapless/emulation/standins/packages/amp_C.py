"""``amp_C``: apex's kernels over many tensors, as scripts that take them from there call them."""

from __future__ import annotations

from gapless.emulation.standins.multi_tensor import kernels_for
from gapless.emulation.standins.package import Package

PACKAGE = Package(
    "amp_C", "apex", "0.1", lacks="the kernels for mixed precision are missing", requests=("apex",)
)
PACKAGE.holds("amp_C", **kernels_for("amp_C"))
