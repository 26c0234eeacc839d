# needs: lightning
# example is not run: a class of the user's own, which Lightning's Trainer would have to run
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")


class Model(LightningModule):
    def __init__(self, shown):
        super().__init__()
        self.net = nn.Linear(2, 1)
        self.shown = shown

    def training_step(self, batch, index):
        loss = self.net(batch[0]).square().mean()
        self.log("loss", loss, prog_bar=self.shown)  # GAP120 x?
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(shown):
    loader = DataLoader(TensorDataset(torch.randn(6, 2)), batch_size=2, pin_memory=True)
    trainer = Trainer(
        accelerator="cuda", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_model_summary=False, enable_progress_bar=shown,
    )
    return trainer, Model(shown), loader


trainer, model, loader = train(shown=True)
trainer.fit(model, loader)  # GAP154 x10, GAP127 x?, GAP121 x?, GAP122 x?, GAP132 x?
trainer, model, loader = train(shown=False)
trainer.fit(model, loader)  # GAP154 x4, GAP127 x?, GAP121 x?, GAP122 x?, GAP132 x?
len(loader)  # no wait
