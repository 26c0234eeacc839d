"""`Timeline` run again under changed assumptions (no torch)."""
