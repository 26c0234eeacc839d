import torch
import torch.nn as nn
import torch.optim as optim

dev0, dev1 = torch.device("cuda:0"), torch.device("cuda:1")


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10).to(dev0)  # waits: set-up
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5).to(dev1)  # waits: set-up

    def forward(self, x):
        x = self.relu(self.net1(x.to(dev0)))  # waits: 1 every step
        return self.net2(x.to(dev1))


torch.manual_seed(0)
print(torch.cuda.device_count(), "GPUs")
model = ToyModel()
loss_fn = nn.MSELoss()
optimizer = optim.SGD(model.parameters(), lr=0.001)

total = torch.zeros((), device=dev1)
for step in range(20):
    optimizer.zero_grad()
    outputs = model(torch.randn(20, 10))
    labels = torch.randn(20, 5).to(dev1)  # waits: 1 every step
    loss = loss_fn(outputs, labels)
    loss.backward()
    optimizer.step()
    total += loss.detach()

assert outputs.device == dev1 and model.net1.weight.grad.device == dev0
with torch.cuda.device(1):
    print("mean loss %.4f on GPU %d" % (total.item() / 20, torch.cuda.current_device()))  # waits: after
