"""Where a storage can be, beside on a device, whose place is its index (0, 1, …)."""

from __future__ import annotations

HOST = -1
PINNED = -2
ORPHAN = -3
"""A tensor some C++ code made without saying where: it follows the first device tensor it meets."""
