import torch

x = torch.randn(1000, device="cuda")
torch.cuda.memory_allocated()  # no wait
del x
torch.cuda.empty_cache()  # GAP132
torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()  # no wait
torch.cuda.reset_peak_memory_stats()  # no wait
