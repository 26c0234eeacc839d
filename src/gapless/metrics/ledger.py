"""The module that metrics saved whole by earlier versions name for their update history."""

from __future__ import annotations

from gapless.metrics.update_history import UpdateHistory as Ledger

__all__ = ["Ledger"]
