import torch
import torch.nn.functional as F

device = "cuda"
log_probs = torch.randn(6, 2, 5, device=device).log_softmax(2)
labels = torch.ones(2, 2, dtype=torch.long, device=device)
on_device = torch.full((2,), 6, device=device), torch.full((2,), 2, device=device)
host = torch.randn(6, 2, 5).log_softmax(2)

F.ctc_loss(log_probs, labels, (6, 6), (2, 2))  # GAP128 x3
F.ctc_loss(log_probs, labels, *on_device)  # GAP128 x5
F.ctc_loss(host, torch.ones(2, 2, dtype=torch.long), (6, 6), (2, 2))  # no wait
F.nll_loss(log_probs[0], labels[:, 0])  # no wait
