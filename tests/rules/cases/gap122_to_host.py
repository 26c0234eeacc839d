import torch

device = "cuda"
x = torch.randn(4, device=device)
host = torch.empty(4)
pinned = torch.empty(4, pin_memory=True)
rows = torch.empty(4, 8, pin_memory=True)

x.cpu()  # GAP122
x.to("cpu")  # GAP122
x.cpu().numpy()  # GAP122
x.detach().cpu().tolist()  # GAP122
host.copy_(x)  # GAP122
pinned.copy_(x)  # GAP122
x.type(torch.LongTensor)  # GAP122
rows[:, :4].copy_(x, non_blocking=True)  # GAP122
x.to("cpu", non_blocking=True)  # no wait
pinned.copy_(x, non_blocking=True)  # no wait
rows[1, :4].copy_(x, non_blocking=True)  # no wait
x.type(torch.long)  # no wait
host.cpu()  # no wait
x.clone(), x.detach(), x.contiguous()  # no wait
