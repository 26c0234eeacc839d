"""Run a user's script or block while it is recorded."""
