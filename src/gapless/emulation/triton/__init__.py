"""Triton on the emulated device: kernels are compiled as far as TTIR, which needs no GPU, and evaluated.

Triton is not imported here before the script imports it.
"""
