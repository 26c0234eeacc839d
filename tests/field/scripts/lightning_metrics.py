import argparse
import tempfile

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy


class Classifier(L.LightningModule):
    def __init__(self, classes=4):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, classes))
        self.train_acc = MulticlassAccuracy(num_classes=classes)
        self.val_acc = MulticlassAccuracy(num_classes=classes)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x)
        loss = nn.functional.cross_entropy(logits, y)
        self.train_acc(logits, y)  # waits: 2 every step
        self.log("train_loss", loss, on_step=True, on_epoch=True)  # may wait: first step
        self.log("train_acc", self.train_acc, on_step=True, on_epoch=True)
        self.log("lr", 1e-2, on_step=True, on_epoch=False)  # waits: 1 every step; may wait: first step
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x)
        self.val_acc.update(logits, y)  # waits: evaluation
        self.log("val_loss", nn.functional.cross_entropy(logits, y))  # may wait: evaluation
        self.log("val_acc", self.val_acc)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-2, momentum=0.9)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", default="16-mixed")
    parser.add_argument("--accelerator", default="gpu")
    args = parser.parse_args()

    L.seed_everything(7)
    data = TensorDataset(torch.randn(160, 16), torch.randint(0, 4, (160,)))
    train_loader = DataLoader(data, batch_size=8, shuffle=True, pin_memory=True)
    val_loader = DataLoader(data, batch_size=40, pin_memory=True)
    root = tempfile.mkdtemp()
    trainer = L.Trainer(
        accelerator=args.accelerator,
        devices=1,
        precision=args.precision,
        max_epochs=2,
        gradient_clip_val=1.0,
        log_every_n_steps=5,
        logger=CSVLogger(root),
        callbacks=[ModelCheckpoint(root, monitor="val_loss", save_top_k=1)],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Classifier()
    # waits: about 1 every step; about 3 every 5 steps; some steps; set-up; may wait: evaluation, after, first step
    trainer.fit(model, train_loader, val_loader)
    print("finished at step", trainer.global_step)


if __name__ == "__main__":
    main()
