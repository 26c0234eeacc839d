import copy
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = "cuda"
path = "model.pt"
output_dir = "out"
classes, background, ignore = 5, 0, 4
x = torch.randn(8, 4, device=device)
z = torch.randn(8, 4, device=device)
y = torch.arange(8, device=device) % classes
target = torch.arange(8, device=device) % classes
mask = x > 0
scores = torch.rand(8, device=device)
counts = torch.arange(8, device=device) % 4
lengths = torch.arange(8, device=device) % 4 + 1
class_weights = torch.rand(classes)
covariance = torch.eye(3, device=device)
sequences = torch.randn(6, 3, 4, device=device)
lengths_on_host = torch.tensor([2, 6, 4])
sorted_lengths = torch.tensor([6, 4, 2])
rnn = nn.GRU(4, 4, device=device)
model = nn.Linear(4, classes, device=device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
logits = model(x)
loss = F.cross_entropy(logits, y)
target_loss = torch.ones((), device=device)
dataset = TensorDataset(torch.randn(8, 4), torch.zeros(8, dtype=torch.long))
pinned_loader = DataLoader(dataset, batch_size=4, pin_memory=True)


def train_step():
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def group():
    store = torch.distributed.HashStore()
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)


def classifier():
    from transformers import BertConfig, BertForSequenceClassification

    size = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = BertConfig(**size, intermediate_size=8, max_position_embeddings=16)
    rows = [{"input_ids": [1, 2, 3, 4], "labels": number % 2} for number in range(16)]
    return BertForSequenceClassification(config), rows


def causal_model():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    return LlamaForCausalLM(config).to(device), torch.arange(8, device=device).reshape(2, 4)


