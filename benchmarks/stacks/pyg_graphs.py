"""PyTorch Geometric: graph classification with GIN over batches of graphs, and node classification with GAT."""
# By hand: 8 in each step: five tensors of the batch copied, edges selected by a mask in `dropout_edge` and in
# `remove_self_loops`, the loss.

import _tiny
import torch
import torch.nn.functional as F
from torch.nn import Linear, ReLU, Sequential
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATConv, GINConv, global_add_pool
from torch_geometric.utils import dropout_edge

torch.manual_seed(0)
device = torch.device(_tiny.device())


def graph(label: int) -> Data:
    edges = torch.randint(0, 10, (2, 24))
    return Data(x=torch.randn(10, 8), edge_index=edges, y=torch.tensor([label]))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = GINConv(Sequential(Linear(8, 16), ReLU(), Linear(16, 16)), train_eps=True)
        self.second = GATConv(16, 4, heads=4)
        self.out = Linear(16, 2)

    def forward(self, x, edge_index, batch, size):
        edge_index, _ = dropout_edge(edge_index, p=0.1, training=self.training)
        x = self.first(x, edge_index).relu()
        x = F.elu(self.second(x, edge_index))
        x = global_add_pool(x, batch, size=size)
        return self.out(F.dropout(x, p=0.5, training=self.training))


loader = DataLoader([graph(n % 2) for n in range(104)], batch_size=8, shuffle=True)
model = Net().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
model.train()
total = 0.0
for data in loader:
    data = data.to(device)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(data.x, data.edge_index, data.batch, data.num_graphs), data.y)
    loss.backward()
    optimizer.step()
    total += float(loss) * data.num_graphs
print(total / len(loader.dataset))
