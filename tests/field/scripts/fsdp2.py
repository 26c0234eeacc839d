"""torchrun --nproc_per_node=2 fsdp2.py"""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.fc2(torch.relu(self.fc1(self.norm(x))))


def main():
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    torch.manual_seed(0)

    model = nn.Sequential(Block(16), Block(16), nn.Linear(16, 4)).to("cuda")  # waits: set-up
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    for step in range(20):
        x = torch.randn(8, 16, device="cuda")
        y = torch.randint(0, 4, (8,), device="cuda")
        loss = nn.functional.cross_entropy(model(x).float(), y)  # may wait
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 0:
            value = loss.item()  # waits: 1 every 5 steps
            if rank == 0:
                print(f"step {step} loss {value:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
