"""Runs without values: large tensors have sizes, strides and places, and nothing in them.

`GuessedValues` keeps a table of guesses for storages without values, and runs operators without computing
them; `guesses` estimates such values, `sizes` the number of elements of results that depend on values, and
`reads` answers reads of the CPU.
"""
