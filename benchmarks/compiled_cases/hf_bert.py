"""A tiny BERT of Hugging Face's, from its configuration: padded batches with a mask."""

import torch
from transformers import BertConfig, BertForSequenceClassification

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
config = BertConfig(
    vocab_size=128, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
)
model = torch.compile(BertForSequenceClassification(config).to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for length in (16, 16, 20, 12):
    ids = torch.randint(0, 128, (2, length), device=device)
    mask = torch.ones_like(ids)
    mask[1, length // 2 :] = 0
    out = model(input_ids=ids, attention_mask=mask, labels=torch.tensor([0, 1], device=device))
    out.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
