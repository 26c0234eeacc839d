"""Races: accesses to the same memory that nothing orders on a GPU, found by who waits for whom.

The emulated device runs everything at once, so values never show a race. Vector clocks do (`clocks`), one per
stream, process group and the host. A launch is ordered after what its stream has waited for and what the host
knows to be done; two accesses that are not ordered, one of which writes, are a race. `books` keeps the last
accesses of each storage, `flights` the pending copies between pinned memory and the device, `reuse` memory
that was freed too early. The rest of the emulation calls `checker.Checker`.

Only pinned copies are followed until a second stream or an asynchronous collective shows up.
"""
