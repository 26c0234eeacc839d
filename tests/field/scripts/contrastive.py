import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

device = torch.device("cuda")
torch.manual_seed(0)
batch_size, views, temperature = 8, 2, 0.2


class TwoCrops(Dataset):
    def __len__(self):
        return batch_size * 24

    def __getitem__(self, index):
        base = torch.randn(32)
        return [base + 0.1 * torch.randn(32) for _ in range(views)], index


class GradientGate(torch.autograd.Function):
    """Passes gradients unless they are too large."""

    @staticmethod
    def forward(ctx, x, limit):
        ctx.limit = limit
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        norm = grad.norm()
        if norm > ctx.limit:  # waits: 1 every step
            grad = grad * (ctx.limit / norm)
        return grad, None


class SwishFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad_output * (s * (1 + x * (1 - s)))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(32, 64)
        self.bn = nn.BatchNorm1d(64)
        self.fc2 = nn.Linear(64, 16)

    def forward(self, x):
        x = SwishFunction.apply(self.bn(self.fc1(x)))
        return GradientGate.apply(self.fc2(x), 10.0)


def info_nce_loss(features):
    labels = torch.cat([torch.arange(batch_size) for i in range(views)], dim=0)
    labels = (labels.unsqueeze(0) == labels.unsqueeze(1)).float()
    labels = labels.to(device)  # waits: 1 every step
    features = F.normalize(features, dim=1)
    similarity_matrix = torch.matmul(features, features.T)
    # discard the main diagonal from both: labels and similarities matrix
    mask = torch.eye(labels.shape[0], dtype=torch.bool).to(device)  # waits: 1 every step
    labels = labels[~mask].view(labels.shape[0], -1)  # waits: 1 every step
    similarity_matrix = similarity_matrix[~mask].view(similarity_matrix.shape[0], -1)  # waits: 2 every step
    positives = similarity_matrix[labels.bool()].view(labels.shape[0], -1)  # waits: 2 every step
    negatives = similarity_matrix[~labels.bool()].view(similarity_matrix.shape[0], -1)  # waits: 2 every step
    logits = torch.cat([positives, negatives], dim=1)
    labels = torch.zeros(logits.shape[0], dtype=torch.long).to(device)  # waits: 1 every step
    return logits / temperature, labels


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        maxk = max(topk)
        _, pred = output.topk(maxk, 1, True, True)
        correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
        scale = 100.0 / target.size(0)
        return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(scale) for k in topk]


model = Encoder().to(device)  # waits: set-up
criterion = nn.CrossEntropyLoss().to(device)
optimizer = torch.optim.Adam(model.parameters(), 3e-4, weight_decay=1e-4)
loader = DataLoader(TwoCrops(), batch_size=batch_size, shuffle=True, drop_last=True, pin_memory=True)
n_iter = 0
for images, _ in loader:
    images = torch.cat(images, dim=0)
    images = images.to(device)  # waits: 1 every step
    logits, labels = info_nce_loss(model(images))
    loss = criterion(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if n_iter % 6 == 0:
        top1, top5 = accuracy(logits, labels, topk=(1, 5))
        # waits: 3 every 6 steps
        print("loss", loss.item(), "acc/top1", top1[0].item(), "acc/top5", top5[0].item())
    n_iter += 1
