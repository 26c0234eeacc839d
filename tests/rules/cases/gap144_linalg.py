import torch

a = torch.eye(3, device="cuda") * 2
b = torch.ones(3, device="cuda")
host = torch.eye(3)

torch.linalg.cholesky(a)  # GAP144
torch.linalg.inv(a)  # GAP144
torch.linalg.solve(a, b)  # GAP144
torch.linalg.cholesky_ex(a)  # no wait
torch.linalg.inv_ex(a)  # no wait
torch.linalg.solve_ex(a, b)  # no wait
torch.linalg.inv(host)  # no wait
torch.linalg.vector_norm(b)  # no wait
a @ b  # no wait
