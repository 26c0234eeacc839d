"""Llama 3 8B in plain torch: ``fully_shard`` with bf16 weights and float32 gradients, AdamW, checkpointing
that keeps every second product and attention, or none (``--all-kept``).

    torchrun --nproc-per-node 8 _llama.py
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

Tensor = torch.Tensor


def rotations(width: int, length: int) -> Tensor:
    frequencies = 500_000.0 ** (-torch.arange(0, width, 2).float() / width)
    angles = torch.outer(torch.arange(length).float(), frequencies)
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x: Tensor, by: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * by[None, : x.shape[1], None, :]).flatten(3).type_as(x)


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, shared: int) -> None:
        super().__init__()
        self.width = dim // heads
        self.repeats = heads // shared
        self.wq, self.wo = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.wk, self.wv = (nn.Linear(dim, shared * self.width, bias=False) for _ in range(2))

    def forward(self, x: Tensor, by: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (-1, self.width)) for layer in (self.wq, self.wk, self.wv)
        )
        query, key = rotate(query, by), rotate(key, by)
        key, value = (self.repeat_heads(part) for part in (key, value))
        heads = (part.transpose(1, 2) for part in (query, key, value))
        out = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.wo(out.transpose(1, 2).flatten(2))

    def repeat_heads(self, x: Tensor) -> Tensor:
        return x[:, :, :, None].expand(-1, -1, -1, self.repeats, -1).flatten(2, 3)


class FeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, shared: int, hidden: int) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(dim, heads, shared), FeedForward(dim, hidden)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(dim, eps=1e-5), nn.RMSNorm(dim, eps=1e-5)

    def forward(self, x: Tensor, by: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), by)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, settings: argparse.Namespace) -> None:
        super().__init__()
        dim, heads = settings.dim, settings.heads
        self.tok_embeddings = nn.Embedding(settings.vocabulary, dim)
        self.layers = nn.ModuleList(
            Block(dim, heads, settings.shared_heads, settings.hidden) for _ in range(settings.layers)
        )
        self.norm = nn.RMSNorm(dim, eps=1e-5)
        self.output = nn.Linear(dim, settings.vocabulary, bias=False)
        self.register_buffer("by", rotations(dim // heads, settings.length), persistent=False)
        self.width, self.length = dim // heads, settings.length

    def init_weights(self) -> None:
        self.by.copy_(rotations(self.width, self.length))
        for parameter in self.parameters():
            if parameter.dim() == 1:
                nn.init.ones_(parameter)
            else:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, self.by)
        return self.output(self.norm(x))


_aten: Any = torch.ops.aten
KEPT = {
    _aten.mm.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}


def selective_contexts() -> Any:
    """Return the contexts of a checkpoint that saves the operators in `KEPT`, but only every second
    product."""
    products: dict[bool, int] = defaultdict(int)

    def policy(context: Any, func: Callable[..., Any], *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if func is _aten.mm.default:
            products[context.is_recompute] += 1
            if products[context.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE if func in KEPT else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


WHOLE = {
    "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}
"""How the model's own parts are split over the ranks of a node (tensor and sequence parallel), then a
block's."""
LAYER = {
    "attention_norm": SequenceParallel(),
    "attention": PrepareModuleInput(
        input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
    ),
    **dict.fromkeys(("attention.wq", "attention.wk", "attention.wv"), ColwiseParallel()),
    "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
    "ffn_norm": SequenceParallel(),
    "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
    **dict.fromkeys(("feed_forward.w1", "feed_forward.w3"), ColwiseParallel()),
    "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
}


def shard(model: Llama, mesh: Any, tensor_parallel: int, checkpointed: bool = True) -> Llama:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    spread = mesh["copies", "dp"] if mesh["copies"].size() > 1 else mesh["dp"]
    shared: dict[str, Any] = {"mesh": spread, "mp_policy": policy}
    if tensor_parallel > 1:
        parallelize_module(model, mesh["tp"], WHOLE)
    for number, layer in enumerate(model.layers):
        if tensor_parallel > 1:
            parallelize_module(layer, mesh["tp"], LAYER)
        if checkpointed:
            model.layers[number] = checkpoint_wrapper(
                layer, context_fn=selective_contexts, preserve_rng_state=False
            )
    for number, layer in enumerate(model.layers):
        fully_shard(layer, reshard_after_forward=number + 1 < len(model.layers), **shared)
    fully_shard(model, reshard_after_forward=True, **shared)
    return model


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    sizes = {
        "tensor-parallel": 1, "copies": 1, "vocabulary": 128_256, "dim": 4096, "heads": 32, "shared-heads": 8,
        "hidden": 14_336, "layers": 32, "batch": 2, "length": 8192, "steps": 6,
    }  # fmt: skip
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--all-kept", action="store_true", help="no checkpointing")
    return parser.parse_args()


def main() -> None:
    settings = parse_options()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    sharded_over = dist.get_world_size() // settings.tensor_parallel // settings.copies
    shape = (settings.copies, sharded_over, settings.tensor_parallel)
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("copies", "dp", "tp"))
    with torch.device("meta"):
        model = Llama(settings)
    model = shard(model, mesh, settings.tensor_parallel, checkpointed=not settings.all_kept)
    model.to_empty(device="cuda")
    with torch.no_grad():
        model.init_weights()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True)
    for step in range(settings.steps):
        tokens = torch.randint(settings.vocabulary, (settings.batch, settings.length + 1), device="cuda")
        optimizer.zero_grad()
        out = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(out.flatten(0, 1).float(), tokens[:, 1:].flatten())
        del out
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        if step + 1 == settings.steps and dist.get_rank() == 0:
            print(f"loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
