"""Lightning: two training loaders in turn with two validation loaders, metrics logged for each."""
# By hand: 6 to 7 in each step: four copies of two batches, the logged loss read twice, every fourth step once
# more for the logger.

import _tiny
import lightning as L
import torch
import torchmetrics
from lightning.pytorch.utilities import CombinedLoader
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Two(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        self.accuracy = nn.ModuleList(torchmetrics.Accuracy("multiclass", num_classes=4) for _ in range(2))

    def training_step(self, batch, batch_idx):
        first, second = batch["labelled"], batch["noisy"]
        loss = nn.functional.cross_entropy(self.body(first[0]), first[1])
        loss = loss + 0.1 * nn.functional.cross_entropy(self.body(second[0]), second[1])
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        images, labels = batch
        logits = self.body(images)
        metric = self.accuracy[dataloader_idx]
        metric(logits, labels)
        self.log("val_loss", nn.functional.cross_entropy(logits, labels))
        self.log("val_accuracy", metric)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}


def loader(rows: int, shuffle: bool = False) -> DataLoader:
    data = TensorDataset(torch.randn(rows, 16), torch.randint(0, 4, (rows,)))
    return DataLoader(data, batch_size=8, shuffle=shuffle)


train = CombinedLoader({"labelled": loader(128, True), "noisy": loader(64, True)}, "max_size_cycle")
trainer = L.Trainer(
    accelerator="cpu" if _tiny.device() == "cpu" else "gpu",
    devices=1,
    max_epochs=2,
    precision="bf16-mixed",
    gradient_clip_val=1.0,
    log_every_n_steps=4,
    logger=False,
    enable_checkpointing=False,
)
trainer.fit(Two(), train, [loader(24), loader(24)])
