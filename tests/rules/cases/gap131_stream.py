import torch

x = torch.randn(3, device="cuda")
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

start.record()  # no wait
y = x * 2
end.record()  # no wait
end.query()  # no wait
end.synchronize()  # GAP131
start.elapsed_time(end)  # no wait
torch.cuda.current_stream().synchronize()  # GAP131
torch.cuda.current_stream().record_event()  # no wait
torch.cuda.current_stream().wait_event(end)  # no wait
