"""Functions of TorchMetrics 1.9 that wait, rewritten so that they do not; one file per kind.

Each is registered with :func:`gapless.metrics.torchmetrics._registry.replacement_for`; all files here are
imported. All follow one pattern: values that would be removed from a tensor get weight 0, values that would
be read on the host are counted on the device, and every size is known beforehand.
"""

from __future__ import annotations

import importlib
import pkgutil

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")
