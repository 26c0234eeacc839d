import torch
from torch import nn

device = "cuda"
layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, device=device)
encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
x = torch.randn(2, 5, 4, device=device)
causal = nn.Transformer.generate_square_subsequent_mask(5, device=device)  # no wait

encoder(x, mask=causal)  # GAP152
encoder(x, mask=causal, is_causal=True)  # no wait
encoder(x, mask=causal, is_causal=False)  # no wait
encoder(x)  # no wait
