"""A tiny T5 trained with labels, its encoder and decoder compiled as one, then asked in eval mode."""

import torch
from transformers import T5Config, T5ForConditionalGeneration

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
config = T5Config(
    vocab_size=64, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, decoder_start_token_id=0
)
model = T5ForConditionalGeneration(config).to(device)
model.compile()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for length in (6, 6, 9):
    ids = torch.randint(1, 64, (2, length), device=device)
    loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
model.eval()
with torch.no_grad():
    model(input_ids=ids, labels=ids)
