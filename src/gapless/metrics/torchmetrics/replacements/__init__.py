"""Functions of TorchMetrics 1.9 that wait, written anew so that they do not; one file per kind.

Each is registered with :func:`gapless.metrics.torchmetrics._registry.instead_of`; files are found by
themselves. All follow one pattern: what would be cut out of a tensor is given weight 0, what would be looked
at on the host is counted on the device, and every size is known beforehand.
"""

from __future__ import annotations

import importlib
import pkgutil

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")
