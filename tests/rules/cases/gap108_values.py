import torch

p = torch.rand(4, 5, device="cuda")
host = torch.rand(4, 5)

one = torch.multinomial(p, 1)  # GAP108 x2
several = torch.multinomial(p, 3)  # GAP108 x2
action = torch.distributions.Categorical(p, validate_args=False).sample()  # GAP108 x2
again = torch.multinomial(p, 3, replacement=True)  # no wait
torch.multinomial(host, 1)  # no wait
drawn = (p / torch.empty_like(p).exponential_()).argmax(-1)  # no wait
noise = torch.bernoulli(p)  # no wait
