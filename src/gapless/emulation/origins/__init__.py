"""Where values on the CPU come from, recorded while the script runs.

An origin is kept as an attribute of the storage, which torch keeps for as long as the storage lives: nothing
of the script's is kept alive by it.
"""
