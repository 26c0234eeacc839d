"""Functions of TorchMetrics 1.9 that wait, written anew so that they do not; one file per kind.

Each is registered with :func:`gapless.metrics.torchmetrics._registry.instead_of`. All follow one pattern:
what would be cut out of a tensor is given weight 0, what would be looked at on the host is counted on the
device, and every size is known beforehand.
"""

from __future__ import annotations

from gapless.metrics.torchmetrics.replacements import (
    areas,
    checks,
    classes,
    compute,
    curves,
    matrices,
    others,
    points,
    ranks,
)

__all__ = ["areas", "checks", "classes", "compute", "curves", "matrices", "others", "points", "ranks"]
