"""Lightning: the FSDP strategy on one device, activation checkpointing."""
# By hand: 3 in each step: a copy of the batch, the logged loss read for the progress bar at the batch's end
# and when it is drawn.

import lightning as L
import torch
from lightning.pytorch.strategies import FSDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Language(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = None

    def configure_model(self):
        if self.model is None:
            layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
            self.model = nn.Sequential(
                nn.Embedding(64, 32), nn.TransformerEncoder(layer, 2), nn.Linear(32, 64)
            )

    def training_step(self, batch):
        (tokens,) = batch
        logits = self.model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


strategy = FSDPStrategy(
    auto_wrap_policy={nn.TransformerEncoderLayer},
    activation_checkpointing_policy={nn.TransformerEncoderLayer},
)
trainer = L.Trainer(
    accelerator="gpu",
    devices=1,
    strategy=strategy,
    precision="bf16-mixed",
    max_steps=13,
    logger=False,
    enable_checkpointing=False,
)
trainer.fit(
    Language(), DataLoader(TensorDataset(torch.randint(0, 64, (128, 17))), batch_size=8, num_workers=0)
)
