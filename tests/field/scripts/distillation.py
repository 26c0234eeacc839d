import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(42)
T, alpha = 4.0, 0.7


class AverageMeter:
    def __init__(self, name):
        self.name = name
        self.sum = self.count = 0.0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(self.count, 1)


def mlp(width):
    hidden = [nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, 10))


teacher = mlp(64).to(device).eval()  # waits: set-up
student = mlp(16).to(device)  # waits: set-up
for p in teacher.parameters():
    p.requires_grad = False

train_set = TensorDataset(torch.randn(320, 1, 8, 8), torch.randint(0, 10, (320,)))
train_loader = DataLoader(train_set, batch_size=16, shuffle=True, pin_memory=True)
test_loader = DataLoader(train_set, batch_size=64, pin_memory=True)
optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9, nesterov=True)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)


def accuracy(output, target):
    pred = output.argmax(1)
    return (pred == target).float().mean()


def train_one_epoch(epoch):
    losses, confidence, top1 = AverageMeter("loss"), AverageMeter("confidence"), AverageMeter("acc")
    student.train()
    for inputs, labels in train_loader:
        inputs = inputs.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        with torch.no_grad():
            teacher_logits = teacher(inputs)
            confidence.update(teacher_logits.softmax(1).amax(1).mean().item())  # waits: 1 every step
        student_logits = student(inputs)
        log_p = F.log_softmax(student_logits / T, dim=1)
        soft = F.kl_div(log_p, F.softmax(teacher_logits / T, dim=1), reduction="batchmean")
        loss = alpha * T * T * soft + (1 - alpha) * F.cross_entropy(student_logits, labels)
        if torch.isnan(loss):  # waits: 1 every step
            raise RuntimeError("loss is nan")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.update(loss.item(), inputs.size(0))  # waits: 1 every step
        top1.update(accuracy(student_logits, labels), inputs.size(0))
    # waits: some steps
    print(f"epoch {epoch} loss {losses.avg:.3f} teacher {confidence.avg:.3f} acc {top1.avg:.3f}")


@torch.no_grad()
def validate():
    student.eval()
    correct = torch.zeros((), dtype=torch.long, device=device)
    for inputs, labels in test_loader:
        inputs = inputs.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        correct += (student(inputs).argmax(1) == labels).sum()
    return correct.item() / len(train_set)  # waits: evaluation


for epoch in range(2):
    train_one_epoch(epoch)
    scheduler.step()
    print(f"accuracy {validate():.3f}")
