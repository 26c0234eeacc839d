"""Estimate steps on a GPU that is not present, from a recorded programme and the GPU's data sheet."""
