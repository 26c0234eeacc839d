import torch

device = "cuda"
x = torch.randn(8, device=device)
y = torch.ones((), device=device)
host = torch.ones(())
flag = False

if (x > 9).any():  # GAP102
    flag = True
while y < 0:  # GAP102
    y += 1
assert torch.isfinite(x).all()  # GAP102
both = bool(y) and flag  # GAP102
best = max(y, y + 1)  # GAP102
ordered = sorted([y, y + 1, y + 2])  # GAP102 x2
inverse = not y  # GAP102
chosen = 1 if y > 3 else 2  # GAP102
same = y in [y + 1, y]  # GAP102
same = y in [y + 1, y + 0]  # GAP102 x2
any(t > 5 for t in [y, y])  # GAP102 x2

flag = x is not None and x.numel() > 3 and x.is_cuda  # no wait
if x is None or flag is False or len(x) == 0:  # no wait
    pass
if host > 3:  # no wait
    pass
torch.where(y > 3, y, -y)  # no wait
torch.maximum(y, y + 1)  # no wait
bad = torch.zeros((), dtype=torch.bool, device=device)
bad |= torch.isnan(x).any()  # no wait
if flag and y > 3:  # GAP102
    pass
if not flag and y > 3:  # no wait
    pass
