import torch

x = torch.randn(4, device="cuda")
host = torch.empty(4)
code = torch.cuda.cudart().cudaHostRegister(host.data_ptr(), host.numel() * 4, 0)  # GAP100
torch.cuda.cudart().cudaMemGetInfo(0)  # no wait
y = x + 1  # no wait
