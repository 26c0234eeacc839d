import torch

device = "cuda"
x = torch.randn(3, device=device)

torch.tensor(1.0, device=device)  # GAP121
torch.tensor([1, 2], device=device)  # GAP121
torch.as_tensor(2.0, device=device)  # GAP121
torch.as_tensor([0.2, 0.8], device=device)  # GAP121
x.new_tensor([1.0, 2.0])  # GAP121
torch.full((), 1.0, device=device)  # no wait
torch.zeros(3, device=device), torch.ones_like(x), torch.arange(3, device=device)  # no wait
x.new_full((), 2.0), x.new_zeros(3)  # no wait
torch.scalar_tensor(2.0, device=device)  # no wait
torch.where(x > 0, torch.tensor(0.0), x)  # GAP121
torch.where(x > 0, 0.0, x)  # no wait
x * 2.0 + 1  # no wait
torch.tensor(1.0)  # no wait
torch.randn(3, device=device)  # no wait
