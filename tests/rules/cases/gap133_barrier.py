# example: group()
import torch
import torch.distributed as dist

dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(3, device="cuda")
dist.barrier()  # GAP133
dist.all_reduce(x)  # no wait
work = dist.all_reduce(x, async_op=True)  # no wait
work.wait()  # no wait
dist.destroy_process_group()
