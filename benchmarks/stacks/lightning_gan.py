"""Lightning: a GAN with manual optimisation, two optimizers that take turns."""
# By hand: 8 in each step: a copy of the batch, three `type_as`, two logged losses read twice each.

import _tiny
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Gan(L.LightningModule):
    def __init__(self, latent: int = 8):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(latent, 32), nn.ReLU(), nn.Linear(32, 64), nn.Tanh())
        self.discriminator = nn.Sequential(nn.Linear(64, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, noise):
        return self.generator(noise)

    def adversarial_loss(self, guess, valid):
        return nn.functional.binary_cross_entropy_with_logits(guess, valid)

    def training_step(self, batch):
        (images,) = batch
        first, second = self.optimizers()
        noise = torch.randn(images.shape[0], self.hparams.latent).type_as(images)
        self.toggle_optimizer(first)
        valid = torch.ones(images.size(0), 1).type_as(images)
        loss = self.adversarial_loss(self.discriminator(self(noise)), valid)
        self.log("g_loss", loss, prog_bar=True)
        self.manual_backward(loss)
        first.step()
        first.zero_grad()
        self.untoggle_optimizer(first)

        self.toggle_optimizer(second)
        real = self.adversarial_loss(self.discriminator(images), valid)
        fake = torch.zeros(images.size(0), 1).type_as(images)
        loss = (real + self.adversarial_loss(self.discriminator(self(noise).detach()), fake)) / 2
        self.log("d_loss", loss, prog_bar=True)
        self.manual_backward(loss)
        second.step()
        second.zero_grad()
        self.untoggle_optimizer(second)

    def configure_optimizers(self):
        first = torch.optim.Adam(self.generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
        second = torch.optim.Adam(self.discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
        return [first, second], []


loader = DataLoader(TensorDataset(torch.randn(256, 64)), batch_size=16)
trainer = L.Trainer(
    accelerator="cpu" if _tiny.device() == "cpu" else "gpu",
    devices=1,
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
)
trainer.fit(Gan(), loader)
