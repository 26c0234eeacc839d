"""Runs without values: large tensors have sizes, strides and places, and nothing in them.

`Values` keeps one table of what stands for the values of a storage that has none, and runs operators without
computing them; `guesses` says what such values are like, `sizes` how many there are where that depends on
values, `reads` what the CPU is told when it asks.
"""
