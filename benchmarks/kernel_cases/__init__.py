"""Kernels of other people, with inputs and what plain torch makes of the same: for `benchmarks/kernels.py`."""
