"""A small detector whose training step picks boxes by their scores, which no CUDA graph can hold."""

import torch
from torch import nn


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()
        )
        self.scores, self.boxes = nn.Conv2d(32, 4, 1), nn.Conv2d(32, 4, 1)

    def forward(self, images):
        found = self.features(images)
        return self.scores(found), self.boxes(found)


def main():
    torch.manual_seed(0)
    model = Detector().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(14):
        images = torch.randn(2, 3, 64, 64).pin_memory().cuda(non_blocking=True)
        scores, boxes = model(images)
        kept = (scores > 0).nonzero()
        picked = boxes[kept[:, 0], :, kept[:, 2], kept[:, 3]]
        loss = scores.square().mean() + picked.abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
