"""The compile pass: compile once more, in a copy of the process, what a run compiled."""
