import torch

dense = torch.eye(4, device="cuda")
host = torch.eye(4)
indices = torch.arange(4, device="cuda").repeat(2, 1)
values = torch.ones(4, device="cuda")

sparse = dense.to_sparse()  # GAP111
twice = torch.sparse_coo_tensor(indices, values, (4, 4), check_invariants=False)  # no wait
whole = twice.coalesce()  # GAP111
coalesced = torch.sparse_coo_tensor(indices, values, (4, 4), is_coalesced=True, check_invariants=False)  # no wait
same = coalesced.coalesce()  # no wait
host.to_sparse().coalesce()  # no wait
dense @ dense  # no wait
twice @ dense  # GAP111
whole @ dense  # no wait
dense @ whole  # GAP111
weights = dense.clone().requires_grad_()
(whole @ weights).sum().backward()  # GAP111
torch.zeros(4, device="cuda").index_add_(0, indices[0], values)  # no wait
