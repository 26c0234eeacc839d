"""The table of waits: which operator makes the host wait for a CUDA device, when, how often and why."""
