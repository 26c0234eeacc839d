import torch
import torch.nn as nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

device = "cuda"
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)  # waits: set-up
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
criterion = nn.MSELoss()


def trace_handler(p):
    print(f"profiled until step {p.step_num}: {len(p.key_averages())} kinds of operators")


running = 0.0
with profile(
    activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
    schedule=schedule(wait=1, warmup=1, active=2, repeat=1),
    on_trace_ready=trace_handler,
    record_shapes=True,
) as prof:
    for step in range(20):
        with record_function("data"):
            x = torch.randn(16, 32, device=device)
            y = x.sum(1, keepdim=True)
        with record_function("train"):
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        running = 0.9 * running + 0.1 * loss.item()  # waits: 1 every step
        prof.step()  # may wait
print(f"running loss {running:.4f}")
