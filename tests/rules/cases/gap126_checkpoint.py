import io
import pickle

import torch
from torch import nn

net = nn.Linear(3, 2, device="cuda")
host = nn.Linear(3, 2)

torch.save(net.state_dict(), io.BytesIO())  # GAP126 x2
state = net.state_dict()  # no wait
torch.save(host.state_dict(), io.BytesIO())  # no wait
pickle.dumps(net.weight.detach())  # GAP126
net.load_state_dict(state)  # no wait
