"""The version, in one place: what saves, renders or answers ``--version`` imports it from here."""

from __future__ import annotations

__version__ = "0.1.0"
