# needs: transformers
# example: language_model, tokens = causal_model()
import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
)
with torch.device("cpu"):
    model = LlamaForCausalLM(config)
model.to("cuda")  # GAP127 x14
tokens = torch.arange(8, device="cuda").reshape(2, 4)
full = torch.ones(2, 1, 4, 4, device="cuda").tril().bool()

model(input_ids=tokens, attention_mask=torch.ones_like(tokens))  # GAP146
model(input_ids=tokens)  # no wait
model(input_ids=tokens, attention_mask=full)  # no wait
