"""A classifier whose pictures are augmented in the training process itself."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    """Pictures that come from a disk elsewhere, and are evened out and blurred on the CPU, one by one."""

    def __len__(self):
        return 2048

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        time.sleep(0.0004)  # what the disk takes
        photo = torch.rand(3, 64, 64, generator=generator)
        photo = nn.functional.avg_pool2d(photo, 5, stride=1, padding=2)
        return (photo - photo.mean()) / photo.std(), index % 10


def make_loader():
    return DataLoader(Photos(), batch_size=16, shuffle=True)


def main():
    model = nn.Sequential(
        nn.Conv2d(3, 64, 7, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (photos, labels) in enumerate(make_loader()):
        photos, labels = photos.cuda(), labels.cuda()
        loss = nn.functional.cross_entropy(model(photos), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
