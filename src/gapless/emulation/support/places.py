"""Placements of storages other than on a device, whose placement is its index (0, 1, …)."""

from __future__ import annotations

HOST = -1
PINNED = -2
ORPHAN = -3
"""A tensor that C++ code created without a known device: it follows the first device tensor it meets."""
