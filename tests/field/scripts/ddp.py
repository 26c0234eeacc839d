"""torchrun --nproc_per_node=2 ddp.py"""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def ddp_setup():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend="nccl")


class Trainer:
    def __init__(self, model, train_data, optimizer):
        self.gpu_id = int(os.environ["LOCAL_RANK"])
        self.model = model.to(self.gpu_id)  # waits: set-up
        self.train_data = train_data
        self.optimizer = optimizer
        self.model = DDP(self.model, device_ids=[self.gpu_id])  # may wait
        self.criterion = nn.CrossEntropyLoss()

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        output = self.model(source)  # may wait
        loss = self.criterion(output, targets)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _run_epoch(self, epoch):
        self.train_data.sampler.set_epoch(epoch)
        total = torch.zeros((), device=f"cuda:{self.gpu_id}")
        for source, targets in self.train_data:
            source = source.to(self.gpu_id)  # waits: 1 every step
            targets = targets.to(self.gpu_id)  # waits: 1 every step
            total += self._run_batch(source, targets)
        mean = total / len(self.train_data)
        dist.all_reduce(mean, op=dist.ReduceOp.SUM)
        mean = mean / dist.get_world_size()
        print(f"[GPU{self.gpu_id}] Epoch {epoch} | Steps {len(self.train_data)}")
        if self.gpu_id == 0:
            print(f"mean loss {mean.item():.4f}")  # waits: some steps

    def train(self, max_epochs):
        for epoch in range(max_epochs):
            self._run_epoch(epoch)


def main():
    ddp_setup()
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(320, 20), torch.randint(0, 4, (320,)))
    loader = DataLoader(dataset, batch_size=8, pin_memory=True, sampler=DistributedSampler(dataset))
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    Trainer(model, loader, optimizer).train(2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
