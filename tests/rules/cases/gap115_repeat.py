import torch

x = torch.randn(3, 2, device="cuda")
repeats = torch.ones(3, dtype=torch.long, device="cuda")
host = torch.ones(3, dtype=torch.long)

torch.repeat_interleave(x, repeats, dim=0)  # GAP115 x2
x.repeat_interleave(repeats, dim=0)  # GAP115 x2
torch.repeat_interleave(repeats)  # GAP115 x2
torch.repeat_interleave(x, repeats, dim=0, output_size=3)  # no wait
x.repeat_interleave(2, dim=0)  # no wait
torch.repeat_interleave(host)  # no wait
x.repeat(2, 1)  # no wait
