"""The CUDA device that is not there: real values on the CPU, placement and waits as on a GPU.

`handle` is what users call, `emulator` switches everything on and off, and each folder is a part. A folder
imports only those above it here:

- `support`: what all parts use and that knows nothing of them: patches, stacks, refusals;
- `waits`: the table of waits; `memory`: what a run asks of the GPU's memory, and who keeps it;
- `recording`: what happens, by place and step; `placement`: which storages are on the GPU;
- `races`, `graphs`: accesses that nothing orders, and CUDA graphs;
- `core`: what the parts share while a script runs: the current device, steps, transfers;
- `kernels`: what CUDA computes in its own way; `cuda_api`: `torch.cuda` and what lies below it;
- `dry`: runs without values; `standins`: packages with CUDA code that are not installed;
- `dispatch`: what ATen and Python ask, operator by operator;
- `compiled`, `triton`, `distributed`: torch.compile, Triton kernels, and other ranks.
"""
