"""The same collectives in the profiles of several ranks: which rank comes late to them, and why."""
