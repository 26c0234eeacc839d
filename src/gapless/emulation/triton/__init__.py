"""Triton on the emulated device: kernels are compiled as far as TTIR, which needs no GPU, and evaluated.

Nothing of Triton is imported here before the script imports it.
"""
