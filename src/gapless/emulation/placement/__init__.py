"""Which storages are on the emulated device, and where CUDA refuses to mix devices."""
