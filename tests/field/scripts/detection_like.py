"""A single-shot detector on random boxes: matching, hard negatives, non-maximum suppression in Python."""

import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device("cuda")
torch.manual_seed(0)
GRID, CLASSES, BATCH = 4, 3, 4


def box_iou(a, b):
    lt = torch.max(a[:, None, :2], b[None, :, :2])
    rb = torch.min(a[:, None, 2:], b[None, :, 2:])
    inter = (rb - lt).clamp(min=0).prod(2)
    area_a = (a[:, 2:] - a[:, :2]).prod(1)
    area_b = (b[:, 2:] - b[:, :2]).prod(1)
    return inter / (area_a[:, None] + area_b[None] - inter)


def make_anchors():
    c = (torch.arange(GRID, dtype=torch.float32, device=device) + 0.5) / GRID
    cy, cx = torch.meshgrid(c, c, indexing="ij")
    centres = torch.stack([cx, cy], -1).view(-1, 2)
    return torch.cat([centres - 0.2, centres + 0.2], 1)


def random_targets():
    xy = torch.rand(2, 2) * 0.6
    boxes = torch.cat([xy, xy + 0.2 + 0.2 * torch.rand(2, 2)], 1)
    return boxes, torch.randint(1, CLASSES + 1, (2,))


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, 2, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(GRID),
        )
        self.cls = nn.Conv2d(16, CLASSES + 1, 1)
        self.box = nn.Conv2d(16, 4, 1)

    def forward(self, x):
        f = self.backbone(x)
        n = x.shape[0]
        logits = self.cls(f).permute(0, 2, 3, 1).reshape(n, -1, CLASSES + 1)
        offsets = self.box(f).permute(0, 2, 3, 1).reshape(n, -1, 4)
        return logits, offsets


def match(anchors, boxes, labels):
    iou = box_iou(anchors, boxes)
    best_iou, best_box = iou.max(dim=1)
    target = labels[best_box]
    target[best_iou < 0.3] = 0
    best_anchor = iou.argmax(dim=0)
    target[best_anchor] = labels
    best_box[best_anchor] = 0  # waits[torch<2.15]: 4 every step
    return target, boxes[best_box] - anchors


def detection_loss(logits, offsets, target, target_offsets):
    positive = target > 0
    # waits: 3 every step
    box = F.smooth_l1_loss(offsets[positive], target_offsets[positive], reduction="sum")
    ce = F.cross_entropy(logits.transpose(1, 2), target, reduction="none")
    negative_ce = ce.masked_fill(positive, 0.0)
    rank = negative_ce.argsort(dim=1, descending=True).argsort(dim=1)
    number = positive.sum(dim=1, keepdim=True)
    negative = rank < (3 * number).clamp(max=target.shape[1] - 1)
    cls = ce[positive | negative].sum()  # waits: 2 every step
    n = max(positive.sum().item(), 1)  # waits: 1 every step
    return (box + cls) / n


def nms(boxes, scores, threshold):
    order = scores.argsort(descending=True)
    keep = []
    while order.numel() > 0:
        i = order[0]
        keep.append(i.item())  # waits: evaluation
        if order.numel() == 1:
            break
        iou = box_iou(boxes[i].unsqueeze(0), boxes[order[1:]])[0]  # waits: evaluation
        order = order[1:][iou <= threshold]  # waits: evaluation
    return keep


@torch.no_grad()
def evaluate(model, anchors):
    model.eval()
    kept = 0
    logits, offsets = model(torch.randn(2, 3, 32, 32, device=device))
    scores, _ = logits.softmax(-1)[..., 1:].max(-1)
    for b in range(2):
        top, index = scores[b].topk(6)
        boxes = anchors[index] + offsets[b, index]
        kept += len(nms(boxes, top, 0.5))
    model.train()
    return kept


anchors = make_anchors()
model = Detector().to(device)  # waits: set-up
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for step in range(24):
    images = torch.randn(BATCH, 3, 32, 32)
    images = images.cuda()  # waits: 1 every step
    targets = []
    for _ in range(BATCH):
        boxes, labels = random_targets()
        boxes = boxes.to(device)  # waits: 4 every step
        labels = labels.to(device)  # waits: 4 every step
        targets.append(match(anchors, boxes, labels))
    target = torch.stack([t for t, _ in targets])
    target_offsets = torch.stack([o for _, o in targets])
    logits, offsets = model(images)
    loss = detection_loss(logits, offsets, target, target_offsets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 8 == 0:
        print(f"step {step} loss {loss:.4f}")  # waits: 1 every 8 steps
    if step % 12 == 11:
        print("found", evaluate(model, anchors))
