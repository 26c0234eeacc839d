"""Token dispatch of torchtitan's expert parallelism, on one of 8 ranks: 26 checkpointed layers."""

from __future__ import annotations

import os

import torch
from torch.utils.checkpoint import checkpoint
from torchtitan.models.common.token_dispatcher import AllToAllTokenDispatcher

STEPS, LAYERS, TOKENS, WIDTH, EXPERTS, CHOICES = 14, 26, 256, 64, 64, 6


class Layer(torch.nn.Module):
    """A layer that sends tokens to experts on other ranks, and back."""

    def __init__(self, mesh: torch.distributed.DeviceMesh) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(WIDTH, EXPERTS)
        self.expert = torch.nn.Linear(WIDTH, WIDTH)
        config = AllToAllTokenDispatcher.Config(num_experts=EXPERTS, top_k=CHOICES)
        self.dispatcher = AllToAllTokenDispatcher(config)
        self.dispatcher.ep_mesh = mesh

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores, chosen = self.gate(tokens).softmax(1).topk(CHOICES)
        routed, _, metadata = self.dispatcher.dispatch(tokens, scores, chosen)
        return tokens + self.dispatcher.combine(self.expert(routed), metadata, tokens)


def main() -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = torch.distributed.init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]),))
    layers = torch.nn.ModuleList(Layer(mesh) for _ in range(LAYERS)).cuda()
    optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-3, fused=True)
    for _ in range(STEPS):
        tokens = torch.randn(TOKENS, WIDTH, device="cuda")
        for layer in layers:
            tokens = checkpoint(layer, tokens, use_reentrant=False)
        tokens.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
