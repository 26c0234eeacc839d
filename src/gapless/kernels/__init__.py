"""Triton kernels without a GPU: their TTIR, evaluated in torch for all programs of a grid at once.

Needs torch; Triton itself is needed only to make TTIR out of kernels, which is not done here.
"""
