"""Training loops of the kinds that people run, so small that overhead shows: one call is one step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

Step = Callable[[], None]
Tensor = torch.Tensor


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(width, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


def transformer(device: str, width: int = 64, batch: int = 4, length: int = 32) -> Step:
    """Return a step of a four-block language model with AdamW that reads its loss."""
    torch.manual_seed(0)
    blocks = [Block(width, 4) for _ in range(4)]
    model = nn.Sequential(nn.Embedding(256, width), *blocks, nn.Linear(width, 256)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randint(256, (batch, length))

    def step() -> None:
        tokens = data.to(device)
        loss = F.cross_entropy(model(tokens).view(-1, 256), tokens.view(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()

    return step


class Residual(nn.Module):
    """Two convolutions around which the input passes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.body(x))


def cnn(device: str, autocast: torch.dtype | None = None) -> Step:
    """Return a step of a small residual network on 32×32 images with SGD; `autocast` adds a gradient
    scaler."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    layers += [Residual(16) for _ in range(4)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, enabled=autocast is not None)
    images, labels = torch.randn(8, 3, 32, 32), torch.randint(10, (8,))

    def step() -> None:
        x, y = images.to(device), labels.to(device)
        with torch.autocast(device, dtype=autocast, enabled=autocast is not None):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        loss.item()

    return step


def half(device: str) -> Step:
    """Return a step of the same network under float16 autocast with a scaler; float32 on the plain CPU."""
    return cnn(device, None if device == "cpu" else torch.float16)


def lstm(device: str) -> Step:
    """Return a step of a two-layer LSTM language model over 32 tokens, with a cell stepped by hand."""
    torch.manual_seed(0)
    embed, core = nn.Embedding(128, 32).to(device), nn.LSTM(32, 64, 2, batch_first=True).to(device)
    cell, head = nn.LSTMCell(64, 64).to(device), nn.Linear(64, 128).to(device)
    weights = [*embed.parameters(), *core.parameters(), *cell.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(weights)
    data = torch.randint(128, (8, 33))

    def step() -> None:
        tokens = data.to(device)
        out, _ = core(embed(tokens[:, :-1]))
        h = c = torch.zeros(8, 64, device=device)
        states = []
        for position in range(out.shape[1]):
            h, c = cell(out[:, position], (h, c))
            states.append(h)
        logits = head(torch.stack(states, 1))
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        loss.item()

    return step


class Poles:
    """Several cart-pole games, advanced together."""

    def __init__(self, number: int) -> None:
        self.random = np.random.default_rng(0)
        self.state = self.random.uniform(-0.05, 0.05, (number, 4))

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return observations, rewards, and which games ended (and restarted)."""
        x, v, angle, spin = self.state.T
        push = np.where(action == 1, 10.0, -10.0) + 0.05 * spin**2 * np.sin(angle)
        turn = (9.8 * np.sin(angle) - np.cos(angle) * push / 1.1) / (
            0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1)
        )
        pull = push / 1.1 - 0.05 * turn * np.cos(angle) / 1.1
        self.state = self.state + 0.02 * np.stack([v, pull, spin, turn], 1)
        fallen = (np.abs(self.state[:, 0]) > 2.4) | (np.abs(self.state[:, 2]) > 0.2)
        self.state[fallen] = self.random.uniform(-0.05, 0.05, (int(fallen.sum()), 4))
        return self.state.astype(np.float32), np.ones(len(x), np.float32), fallen.astype(np.float32)


def advantages(rewards: Tensor, values: Tensor, ends: Tensor, over: Tensor, following: Tensor) -> Tensor:
    """Return a rollout's generalized advantages; `over` and `following` are the ends and values after its
    last step."""
    length, poles = rewards.shape
    gains, last = torch.zeros_like(rewards).to(rewards.device), torch.zeros(poles, device=rewards.device)
    for t in reversed(range(length)):
        alive = 1.0 - (over if t == length - 1 else ends[t + 1])
        after = following if t == length - 1 else values[t + 1]
        delta = rewards[t] + 0.99 * after * alive - values[t]
        gains[t] = last = (delta + 0.99 * 0.95 * alive * last).flatten()
    return gains


def ppo(device: str, length: int = 32, poles: int = 4) -> Step:
    """Return a step of PPO as single-file scripts write it: rollout, advantages, four epochs of four
    minibatches."""
    torch.manual_seed(0)

    def network(last: int) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, last))

    actor, critic, games = network(2).to(device), network(1).to(device), Poles(poles)
    weights = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(weights, lr=2.5e-4, eps=1e-5)
    observations = torch.zeros(length, poles, 4, device=device)
    actions, logs, rewards, ends, values = (torch.zeros(length, poles, device=device) for _ in range(5))
    now, over = torch.tensor(games.state.astype(np.float32)).to(device), torch.zeros(poles, device=device)

    def rollout() -> None:
        nonlocal now, over
        for t in range(length):
            observations[t], ends[t] = now, over
            with torch.no_grad():
                policy = torch.distributions.Categorical(logits=actor(now))
                action = policy.sample()
                values[t] = critic(now).flatten()
            actions[t], logs[t] = action, policy.log_prob(action)
            state, reward, fallen = games.step(action.cpu().numpy())
            rewards[t] = torch.tensor(reward).to(device).view(-1)
            now, over = torch.Tensor(state).to(device), torch.Tensor(fallen).to(device)

    def update(x: Tensor, a: Tensor, log: Tensor, gain: Tensor, goal: Tensor) -> None:
        policy = torch.distributions.Categorical(logits=actor(x))
        ratio = (policy.log_prob(a) - log).exp()
        with torch.no_grad():
            ((ratio - 1) - ratio.log()).mean()
            ((ratio - 1.0).abs() > 0.2).float().mean().item()
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        clipped = torch.max(-gain * ratio, -gain * torch.clamp(ratio, 0.8, 1.2)).mean()
        value = 0.5 * ((critic(x).view(-1) - goal) ** 2).mean()
        loss = clipped - 0.01 * policy.entropy().mean() + 0.5 * value
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 0.5)
        optimizer.step()

    def step() -> None:
        rollout()
        with torch.no_grad():
            gains = advantages(rewards, values, ends, over, critic(now).reshape(1, -1))
        flat = [column.flatten(0, 1) for column in (observations, actions, logs, gains, gains + values)]
        for _ in range(4):
            order = torch.randperm(length * poles, device=device)
            for rows in order.chunk(4):
                update(*(column[rows] for column in flat))

    return step


LOOPS: dict[str, Callable[[str], Step]] = {
    "transformer: 4 blocks of width 64, 4×32 tokens, AdamW": transformer,
    "CNN: residual, 8 images of 32×32, SGD": cnn,
    "the same under float16 autocast, with a scaler (plain: float32)": half,
    "LSTM: 2 layers of 64 and a cell by hand, 8×32 tokens, Adam": lstm,
    "PPO: rollout of 32×4, four epochs of four minibatches, Adam": ppo,
}
