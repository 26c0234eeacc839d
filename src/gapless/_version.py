"""The version, defined once: everything that saves, renders or prints it imports it from here."""

from __future__ import annotations

__version__ = "0.1.0"
