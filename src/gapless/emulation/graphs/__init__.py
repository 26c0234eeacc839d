"""CUDA graphs on the emulated device: a capture records what would be launched, a replay runs the record.

`tape` is the record: operators, and the storages that they use (`slots`). A `capture` writes one, refuses
what CUDA refuses with the messages of CUDA and torch (`words`), and undoes writes made while recording.
`graph` replaces ``torch._C._CUDAGraph``; `pools` account for the memory that graphs keep.
The rest of the emulation calls `state.Graphs`. Faults that raise no error on a GPU are found by `watch`,
which checks what happens between replays, and by `host`, which records what Python does in a capture.
"""
