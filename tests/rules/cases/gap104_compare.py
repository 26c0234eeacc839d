import torch

a = torch.randn(4, device="cuda")
b = a.clone()
host = torch.randn(4)

torch.equal(a, b)  # GAP104
a.equal(b)  # GAP104
torch.allclose(a, b)  # GAP104
a.allclose(b, atol=1e-3)  # GAP104
torch.equal(host, host)  # no wait
torch.allclose(host, host)  # no wait
(a == b).all()  # no wait
torch.isclose(a, b).all()  # no wait
a.shape == b.shape  # no wait
