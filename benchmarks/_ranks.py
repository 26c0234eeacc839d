"""A decoder as large runs train it: ``fully_shard`` over nodes, tensor parallelism within, AdamW, bf16.

torchrun --nproc-per-node 8 _ranks.py --layers 2 --dim 256
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.width = dim // heads
        self.norm, self.after = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.query, self.key, self.value = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.out = nn.Linear(dim, dim, bias=False)
        self.up, self.down = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)
        parts = (layer(normed) for layer in (self.query, self.key, self.value))
        heads = (part.unflatten(-1, (-1, self.width)).transpose(1, 2) for part in parts)
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.after(x))))


class Decoder(nn.Module):
    def __init__(self, vocabulary: int, dim: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.head = nn.Linear(dim, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


PLAN = {
    **dict.fromkeys(("query", "key", "value", "up"), ColwiseParallel()),
    **dict.fromkeys(("out", "down"), RowwiseParallel()),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--vocabulary", type=int, default=512)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    shape = (dist.get_world_size() // options.tensor_parallel, options.tensor_parallel)
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = Decoder(options.vocabulary, options.dim, options.heads, options.layers).to("cuda")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        if options.tensor_parallel > 1:
            parallelize_module(block, mesh["tp"], PLAN)
        fully_shard(block, mesh=mesh["dp"], mp_policy=policy)
    fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step in range(options.steps):
        tokens = torch.randint(options.vocabulary, (options.batch, options.length + 1), device="cuda")
        out = model(tokens[:, :-1]).float()
        loss = nn.functional.cross_entropy(out.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step + 1 == options.steps and dist.get_rank() == 0:
            print(f"loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
