import torch

mean = torch.zeros(4, device="cuda")
spread = torch.ones(4, device="cuda", requires_grad=True)
host = torch.ones(4)
p = torch.rand(4, 5, device="cuda")

torch.normal(mean, spread)  # GAP108 x2
torch.normal(0.0, spread.detach())  # GAP108 x2
torch.linalg.matrix_exp(torch.eye(3, device="cuda"))  # GAP108 x3
running = spread.cumprod(0).sum()  # GAP108
running.backward()
torch.normal(mean, 1.0)  # no wait
torch.normal(host, host)  # no wait
mean + spread * torch.randn_like(mean)  # no wait
torch.multinomial(p, 1), torch.multinomial(p, 3)  # GAP108 x0 (before torch 2.5: x4)
torch.distributions.Categorical(p, validate_args=False).sample()  # GAP108 x0 (before torch 2.5: x2)
torch.bernoulli(p), torch.poisson(p), torch.randperm(5, device="cuda")  # no wait
