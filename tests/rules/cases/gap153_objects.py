# example: group()
import torch
import torch.distributed as dist

dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
losses = [None]
loss = torch.ones((), device="cuda")
dist.all_gather_object(losses, {"step": 3})  # GAP153 x5
dist.all_reduce(loss)  # no wait
gathered = [torch.empty_like(loss)]
dist.all_gather(gathered, loss)  # no wait
dist.destroy_process_group()
