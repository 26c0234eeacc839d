import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

GRADIENT_ACCUMULATION = 2


def get_dataloaders():
    train = TensorDataset(torch.randn(320, 24), torch.randint(0, 3, (320,)))
    test = TensorDataset(torch.randn(64, 24), torch.randint(0, 3, (64,)))
    return DataLoader(train, shuffle=True, batch_size=8, drop_last=True), DataLoader(test, batch_size=16)


def main():
    accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=GRADIENT_ACCUMULATION)
    set_seed(42)
    train_dataloader, eval_dataloader = get_dataloaders()
    model = nn.Sequential(nn.Linear(24, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=40)
    # waits: set-up
    prepared = accelerator.prepare(model, optimizer, train_dataloader, eval_dataloader, scheduler)
    model, optimizer, train_dataloader, eval_dataloader, scheduler = prepared

    for epoch in range(2):
        model.train()
        total_loss = 0
        for inputs, targets in train_dataloader:  # waits: 4 every step
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), targets)
                total_loss += loss.detach().float()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()  # waits: 1 every step
                scheduler.step()
                optimizer.zero_grad()

        model.eval()
        correct = 0
        for inputs, targets in eval_dataloader:  # waits: evaluation
            with torch.no_grad():
                predictions = model(inputs).argmax(dim=-1)
            predictions, references = accelerator.gather_for_metrics((predictions, targets))
            correct += (predictions == references).sum().item()  # waits: evaluation
        accelerator.print(f"epoch {epoch}: accuracy {correct / 64:.3f}")
        accelerator.print(f"loss {total_loss.item() / len(train_dataloader):.3f}")  # waits: some steps

    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
