"""The emulated CUDA device: real values on the CPU, placement and waits as on a GPU.

`handle` is what users call, `emulator` switches everything on and off, and each folder is a part. A folder
imports only those above it here:

- `support`: helpers that all parts use and that depend on none of them: patches, stacks, refusals;
- `waits`: the table of waits; `memory`: requests for GPU memory, and the variables that keep it;
- `recording`: waits and launches by source line and step; `placement`: which storages are on the GPU;
- `races`, `graphs`: unordered accesses to the same memory, and CUDA graphs;
- `core`: shared state while a script runs: the current device, steps, transfers;
- `kernels`: operators whose results differ on CUDA; `cuda_api`: `torch.cuda` and the layers below it;
- `dry`: runs without values; `standins`: packages with CUDA code that are not installed;
- `dispatch`: handlers for ATen operators and Python calls;
- `compiled`, `triton`, `distributed`: torch.compile, Triton kernels, and other ranks.
"""
