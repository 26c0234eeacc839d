"""CUDA graphs on the emulated device: a capture records what would be launched, a replay runs the record.

`tape` is the record: operators, and the storages that they use (`slots`). A `capture` writes one, refuses
what CUDA refuses in `words` of CUDA's and torch's own, and puts back what ran while it recorded. `graph` is
what ``torch._C._CUDAGraph`` is on a machine with CUDA, and `pools` the memory that graphs keep.
`state.Graphs` is what the rest of the emulation tells and asks. What is wrong on a GPU without an error is
found by `watch`, which looks at what happens between replays, and by `host`, which looks at what Python did
in a capture.
"""
