"""Placements of storages other than on a device, whose placement is its index (0, 1, …)."""

from __future__ import annotations

HOST = -1
"""A tensor in the CPU's pageable memory; -1 is no device's index."""
PINNED = -2
"""A tensor in the CPU's page-locked memory."""
ORPHAN = -3
"""A tensor that C++ code created without a known device: it follows the first device tensor it meets."""
