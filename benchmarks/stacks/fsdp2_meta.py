"""FSDP2 with meta initialisation, as torchtitan starts a model: one rank, mixed precision, clipping."""
# By hand: 1 to 3 in each step: a copy of the tokens; every fifth step the loss and the norm.

import os

import _tiny
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

os.environ.setdefault("MASTER_ADDR", "localhost")
os.environ.setdefault("MASTER_PORT", "29511")
os.environ.setdefault("RANK", "0")
os.environ.setdefault("WORLD_SIZE", "1")


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.width = width

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (
            part.view(batch, length, 4, -1).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(attended.transpose(1, 2).reshape(batch, length, self.width))


class Model(nn.Module):
    def __init__(self, width: int = 64, words: int = 128):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

    def init_weights(self):
        for name, parameter in self.named_parameters():
            if name.endswith("norm.weight"):
                nn.init.ones_(parameter)
            else:
                nn.init.trunc_normal_(parameter, std=0.02)


kind = _tiny.device()
device = torch.device(kind, int(os.environ.get("LOCAL_RANK", "0"))) if kind == "cuda" else torch.device(kind)
if kind == "cuda":
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if kind == "cuda" else "gloo")
mesh = init_device_mesh(kind, (dist.get_world_size(),), mesh_dim_names=("dp",))

with torch.device("meta"):
    model = Model()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model.layers:
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
model.to_empty(device=kind)
with torch.no_grad():
    model.init_weights()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

for step in range(13):
    tokens = torch.randint(0, 128, (2, 33)).to(device)
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if step % 5 == 0:
        print(step, loss.item(), norm.full_tensor().item())
dist.destroy_process_group()
