import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

device = "cuda"
rnn = nn.GRU(4, 4, device=device)
sequences = torch.randn(6, 3, 4, device=device)

packed = pack_padded_sequence(sequences, torch.tensor([2, 6, 4]), enforce_sorted=False)  # GAP118
padded, lengths = pad_packed_sequence(packed)  # GAP118
ordered = pack_padded_sequence(sequences, torch.tensor([6, 4, 2]))  # no wait
padded, lengths = pad_packed_sequence(ordered)  # no wait
batch = torch.nn.utils.rnn.pad_sequence([torch.ones(2, device=device), torch.ones(3, device=device)])  # no wait
