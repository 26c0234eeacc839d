import argparse
import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--timesteps", type=int, default=20)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--sample-every", type=int, default=10)
args = parser.parse_args()
device = "cuda"
torch.manual_seed(0)


def linear_beta_schedule(timesteps):
    return torch.linspace(0.0001, 0.02, timesteps)


betas = linear_beta_schedule(args.timesteps)
alphas = 1.0 - betas
alphas_cumprod = torch.cumprod(alphas, axis=0)
alphas_cumprod_prev = F.pad(alphas_cumprod[:-1], (1, 0), value=1.0)
sqrt_recip_alphas = torch.sqrt(1.0 / alphas)
sqrt_alphas_cumprod = torch.sqrt(alphas_cumprod)
sqrt_one_minus_alphas_cumprod = torch.sqrt(1.0 - alphas_cumprod)
posterior_variance = betas * (1.0 - alphas_cumprod_prev) / (1.0 - alphas_cumprod)


def extract(a, t, x_shape):
    batch_size = t.shape[0]
    out = a.gather(-1, t.cpu())  # waits: 2 every step; evaluation
    # waits: 2 every step; evaluation
    return out.reshape(batch_size, *((1,) * (len(x_shape) - 1))).to(t.device)


class TimeEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, time):
        half = self.dim // 2
        emb = torch.exp(torch.arange(half, device=time.device) * -(math.log(10000) / (half - 1)))
        emb = time[:, None] * emb[None, :]
        return torch.cat((emb.sin(), emb.cos()), dim=-1)


class UNet(nn.Module):
    def __init__(self, dim=8, classes=4):
        super().__init__()
        self.time_mlp = nn.Sequential(TimeEmbedding(dim), nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))
        self.label_emb = nn.Embedding(classes + 1, dim)
        self.down1 = nn.Conv2d(1, dim, 3, padding=1)
        self.down2 = nn.Conv2d(dim, dim * 2, 4, 2, 1)
        self.norm = nn.GroupNorm(4, dim * 2)
        self.up = nn.ConvTranspose2d(dim * 2, dim, 4, 2, 1)
        self.final = nn.Conv2d(dim * 2, 1, 3, padding=1)

    def forward(self, x, time, label):
        emb = self.time_mlp(time) + self.label_emb(label)
        h1 = F.silu(self.down1(x) + emb[:, :, None, None])
        h2 = F.silu(self.norm(self.down2(h1)))
        h = F.interpolate(self.up(h2), size=h1.shape[-2:], mode="nearest")
        return self.final(torch.cat((h, h1), dim=1))


class EMA:
    def __init__(self, model, decay=0.995):
        self.decay = decay
        self.shadow = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for ema_p, p in zip(self.shadow.parameters(), model.parameters()):
            ema_p.mul_(self.decay).add_(p, alpha=1 - self.decay)
        for ema_b, b in zip(self.shadow.buffers(), model.buffers()):
            ema_b.copy_(b)


def q_sample(x_start, t, noise):
    a = extract(sqrt_alphas_cumprod, t, x_start.shape)
    b = extract(sqrt_one_minus_alphas_cumprod, t, x_start.shape)
    return a * x_start + b * noise


@torch.no_grad()
def sample(model, n):
    x = torch.randn(n, 1, 8, 8, device=device)
    label = torch.zeros(n, dtype=torch.long, device=device)
    for i in reversed(range(args.timesteps)):
        t = torch.full((n,), i, device=device, dtype=torch.long)
        noise = extract(betas, t, x.shape) * model(x, t, label)
        x = x - noise / extract(sqrt_one_minus_alphas_cumprod, t, x.shape)
        x = x * extract(sqrt_recip_alphas, t, x.shape)
        if i > 0:
            x = x + torch.sqrt(extract(posterior_variance, t, x.shape)) * torch.randn_like(x)
    return x.clamp(-1, 1).cpu()  # waits: evaluation


data = TensorDataset(torch.randn(128, 1, 8, 8), torch.randint(0, 4, (128,)))
dataloader = DataLoader(data, batch_size=8, shuffle=True, drop_last=True, pin_memory=True)
model = UNet().to(device)  # waits: set-up
ema = EMA(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

step = 0
for epoch in range(args.epochs):
    for batch, labels in dataloader:
        step += 1
        optimizer.zero_grad()
        batch = batch.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        # classifier-free guidance: sometimes the label is not given
        dropped = torch.rand(labels.shape, device=device) < 0.1
        labels = torch.where(dropped, torch.tensor(4), labels)  # waits: 1 every step
        t = torch.randint(0, args.timesteps, (batch.shape[0],), device=device).long()
        noise = torch.randn_like(batch)
        loss = F.smooth_l1_loss(noise, model(q_sample(batch, t, noise), t, labels))
        loss.backward()
        optimizer.step()
        ema.update(model)
        if step % args.sample_every == 0:
            print("Loss:", loss.item())  # waits: 1 every 10 steps
            model.eval()
            images = sample(ema.shadow, 2)
            model.train()
            print("samples", images.mean())
