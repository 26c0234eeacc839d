# needs: torch 2.6
import torch

x = torch.randn(3, device="cuda")
side = torch.cuda.Stream()

torch.cuda.synchronize()  # GAP130
torch.accelerator.synchronize()  # GAP130
side.wait_stream(torch.cuda.current_stream())  # no wait
with torch.cuda.stream(side):
    y = x * 2  # no wait
torch.cuda.current_stream().wait_stream(side)  # no wait
