"""Races: accesses to the same memory that nothing orders on a GPU, found by who waits for whom.

The emulated device runs everything at once, so that values never show a race. What shows it are clocks
(`clocks`): of each stream, of each process group and of the host. Work that is launched knows what its stream
has waited for and what the host knows to be done; two accesses of which neither knows of the other, and one
of which writes, are a race. `books` keeps the last accesses of each storage, `flights` the copies between
pinned memory and the device that may be under way, `reuse` memory that was given back too early.
`checker.Checker` is what the rest of the emulation tells.

Only pinned copies are followed until a second stream or an asynchronous collective shows up.
"""
