"""The compile pass: what a run compiled, compiled in a copy of the process afterwards."""
