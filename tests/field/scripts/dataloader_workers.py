import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    def __init__(self, n):
        rng = np.random.default_rng(0)
        self.items = [rng.integers(1, 100, size=rng.integers(3, 12)).tolist() for _ in range(n)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return {"ids": self.items[index], "label": index % 3}


def collate(items):
    longest = max(len(item["ids"]) for item in items)
    ids = torch.zeros(len(items), longest, dtype=torch.long)
    for row, item in enumerate(items):
        ids[row, : len(item["ids"])] = torch.tensor(item["ids"])
    lengths = torch.tensor([len(item["ids"]) for item in items])
    labels = torch.tensor([item["label"] for item in items])
    return {"ids": ids, "mask": ids != 0, "lengths": lengths, "labels": labels}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 16, padding_idx=0)
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.out = nn.Linear(32, 3)

    def forward(self, ids, mask, lengths):
        x = self.embedding(ids)
        # waits: 1 every step
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        _, last = self.rnn(packed)
        mean = (x * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        return self.out(torch.cat([last[-1], mean], dim=-1))


def main():
    torch.manual_seed(0)
    device = torch.device("cuda", 0)
    loader = DataLoader(
        Sentences(160),
        batch_size=8,
        shuffle=True,
        num_workers=2,
        pin_memory=True,
        persistent_workers=True,
        prefetch_factor=2,
        collate_fn=collate,
    )
    model = Classifier().to(device)  # waits: set-up
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(2):
        total = torch.zeros((), device=device)
        for batch in loader:
            assert batch["ids"].is_pinned()
            lengths = batch["lengths"]
            ids = batch["ids"].to(device, non_blocking=True)
            mask = batch["mask"].to(device, non_blocking=True)
            labels = batch["labels"].to(device, non_blocking=True)
            loss = nn.functional.cross_entropy(model(ids, mask, lengths), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.detach()
        print(f"epoch {epoch}: {total.item() / len(loader):.4f}")  # waits: some steps


if __name__ == "__main__":
    main()
