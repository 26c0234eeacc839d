"""The CUDA device that is not there: real values on the CPU, placement and waits as on a GPU."""
