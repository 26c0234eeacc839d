"""Files on the user's machine: how they are written, opened, and recognized."""
