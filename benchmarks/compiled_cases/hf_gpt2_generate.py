"""A tiny GPT-2 whose cache is handed from call to call."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
config = GPT2Config(vocab_size=64, n_positions=64, n_embd=32, n_layer=2, n_head=2)
model = GPT2LMHeadModel(config).to(device).eval()
forward = torch.compile(model)
ids = torch.randint(0, 64, (1, 6), device=device)
with torch.no_grad():
    out = forward(ids, use_cache=True)
    for _ in range(3):
        token = out.logits[:, -1:].argmax(-1)
        out = forward(token, past_key_values=out.past_key_values, use_cache=True)
