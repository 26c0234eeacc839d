"""Greedy decoding of a tiny Llama with a cache of fixed size, its step compiled."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=64,
)
model = LlamaForCausalLM(config).to(device).eval()


def decode(model, token, position, cache):
    logits = model(token, cache_position=position, past_key_values=cache, use_cache=True).logits
    return logits[:, -1].argmax(-1, keepdim=True)


step = torch.compile(decode)
with torch.no_grad():
    cache = StaticCache(config=config, max_cache_len=32)
    prompt = torch.randint(0, 64, (2, 6), device=device)
    token = decode(model, prompt, torch.arange(6, device=device), cache)
    for at in range(6, 10):
        token = step(model, token, torch.tensor([at], device=device), cache)
