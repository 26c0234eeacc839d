"""One mixture-of-experts layer of GPT-OSS as torchtitan trains it: 32 experts, 4 for a token."""

from __future__ import annotations

import torch
from torchtitan.models.gpt_oss.moe import GptOssMoE

STEPS, TOKENS, WIDTH, EXPERTS = 14, 256, 288, 32


def main() -> None:
    config = GptOssMoE.Config(
        num_experts=EXPERTS, num_shared_experts=0, top_k=4, hidden_dim=WIDTH, gate_bias=True,
        score_func="softmax", load_balance_coeff=None,
    )  # fmt: skip
    with torch.device("cuda"):
        layer = GptOssMoE(config, dim=WIDTH)
    for parameter in layer.parameters():
        torch.nn.init.trunc_normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3)
    for _ in range(STEPS):
        tokens = torch.randn(1, TOKENS, WIDTH, device="cuda")
        layer(tokens).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
