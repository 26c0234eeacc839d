"""A loop like torchtitan's: tensor parallel, then FSDP2, activation checkpointing, a bf16 policy; any number of ranks."""
# By hand: 1 to 3 in each step: a copy of the tokens; every fifth step the loss and the norm.

import os

import _tiny
import torch
import torch.distributed as dist
from _fsdp2_model import Model
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

for name, value in {
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29513",
    "RANK": "0",
    "WORLD_SIZE": "1",
}.items():
    os.environ.setdefault(name, value)
kind = _tiny.device()
device = torch.device(kind, int(os.environ.get("LOCAL_RANK", "0")))
if kind == "cuda":
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if kind == "cuda" else "gloo")
tensor = 2 if dist.get_world_size() % 2 == 0 else 1
mesh = init_device_mesh(kind, (dist.get_world_size() // tensor, tensor), mesh_dim_names=("dp", "tp"))

with torch.device("meta"):
    model = Model()
plan = {
    "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
}
parallelize_module(model, mesh["tp"], plan)
inside = {
    "norm": SequenceParallel(),
    "first": ColwiseParallel(input_layouts=Shard(1)),
    "second": RowwiseParallel(output_layouts=Shard(1)),
}
for n, layer in enumerate(model.layers):
    parallelize_module(layer, mesh["tp"], inside)
    model.layers[n] = checkpoint_wrapper(layer, preserve_rng_state=False)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model.layers:
    fully_shard(layer, mesh=mesh["dp"], mp_policy=policy)
fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
model.to_empty(device=kind)
with torch.no_grad():
    model.init_weights()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)

for step in range(13):
    tokens = torch.randint(0, 128, (2, 33)).to(device)
    with loss_parallel():
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
    norm = nn.utils.get_total_norm(
        [parameter.grad for parameter in model.parameters() if parameter.grad is not None], foreach=True
    )
    norm = norm.full_tensor()
    nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm, foreach=True)
    optimizer.step()
    optimizer.zero_grad()
    if step % 5 == 0:
        print(step, loss.full_tensor().item() if hasattr(loss, "full_tensor") else loss.item(), norm.item())
dist.destroy_process_group()
