"""The device properties that ``torch.cuda.get_device_properties`` returns."""

from __future__ import annotations

import uuid

from gapless.model.gpus import MIB, Gpu


class DeviceUuid:
    """A device's UUID as in CUDA's properties: `bytes`, and the usual text by `str`."""

    def __init__(self, value: uuid.UUID) -> None:
        self.bytes = list(value.bytes)
        self._text = str(value)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return self._text


class DeviceProperties:
    """The fields of ``torch._C._CudaDeviceProperties`` for an emulated GPU. Sizes are bytes, clocks kHz."""

    def __init__(self, gpu: Gpu, index: int) -> None:
        self.name = self.gcnArchName = gpu.name
        self.major, self.minor = gpu.capability
        self.total_memory = gpu.total_memory
        self.multi_processor_count = gpu.multi_processor_count
        self.is_integrated = 0
        self.is_multi_gpu_board = 0
        self.max_threads_per_multi_processor = gpu.max_threads_per_sm
        self.max_threads_per_block = 1024
        self.warp_size = gpu.warp_size
        self.regs_per_multiprocessor = 65536
        self.shared_memory_per_block = 48 * 1024
        self.shared_memory_per_block_optin = gpu.shared_memory_per_block_optin
        self.shared_memory_per_multiprocessor = gpu.shared_memory_per_sm
        self.L2_cache_size = gpu.l2_bytes
        self.clock_rate = gpu.clock * 1000
        self.memory_bus_width = gpu.memory_bus
        # The rate at which two transfers per cycle over the whole bus give the bandwidth.
        self.memory_clock_rate = round(gpu.bandwidth * 1e9 / (2 * gpu.memory_bus / 8) / 1e3)
        self.uuid = DeviceUuid(uuid.uuid5(uuid.NAMESPACE_OID, f"gapless {gpu.name} {index}"))
        self.pci_bus_id = index + 1
        self.pci_device_id = 0
        self.pci_domain_id = 0

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // MIB}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size // MIB}MB)"
        )
