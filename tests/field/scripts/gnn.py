import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"
num_nodes, num_edges, num_features, num_classes = 120, 600, 16, 4

x = torch.randn(num_nodes, num_features).to(device)  # waits: set-up
edge_index = torch.randint(0, num_nodes, (2, num_edges)).to(device)  # waits: set-up
y = torch.randint(0, num_classes, (num_nodes,)).to(device)  # waits: set-up
train_mask = torch.zeros(num_nodes, dtype=torch.bool, device=device)
train_mask[:80] = True
test_mask = ~train_mask


class GCNConv(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.lin = nn.Linear(n_in, n_out, bias=False)
        self.bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, x, edge_index):
        row, col = edge_index
        deg = torch.bincount(col, minlength=x.size(0)).to(x.dtype)  # waits: 4 every step; evaluation
        deg_inv_sqrt = deg.pow(-0.5)
        deg_inv_sqrt[deg_inv_sqrt == float("inf")] = 0
        norm = deg_inv_sqrt[row] * deg_inv_sqrt[col]
        message = self.lin(x)[row] * norm.unsqueeze(-1)
        out = torch.zeros(x.size(0), message.size(1), device=x.device).index_add_(0, col, message)
        return out + self.bias


class MaxPoolConv(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.lin = nn.Linear(2 * n_in, n_out)

    def forward(self, x, edge_index):
        row, col = edge_index[0], edge_index[1]
        index = col.unsqueeze(-1).expand(-1, x.size(1))
        pooled = torch.zeros_like(x).scatter_reduce(0, index, x[row], reduce="amax", include_self=False)
        return self.lin(torch.cat([x, pooled], dim=-1))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = GCNConv(num_features, 16)
        self.conv2 = MaxPoolConv(16, 16)
        self.conv3 = GCNConv(16, num_classes)

    def forward(self, x, edge_index):
        x = F.relu(self.conv1(x, edge_index))
        x = F.dropout(F.relu(self.conv2(x, edge_index)), p=0.5, training=self.training)
        return self.conv3(x, edge_index)


model = Net().to(device)  # waits: set-up
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)


def train():
    model.train()
    optimizer.zero_grad()
    out = model(x, edge_index)
    loss = F.cross_entropy(out[train_mask], y[train_mask])  # waits: 3 every step
    loss.backward()
    optimizer.step()
    return float(loss)  # waits: 1 every step


@torch.no_grad()
def test():
    model.eval()
    pred = model(x, edge_index).argmax(dim=-1)
    correct = pred[test_mask] == y[test_mask]  # waits: evaluation
    return int(correct.sum()) / int(test_mask.sum())  # waits: evaluation


for epoch in range(1, 31):
    loss = train()
    if epoch % 10 == 0:
        print(f"Epoch: {epoch:03d}, Loss: {loss:.4f}, Test: {test():.4f}")
