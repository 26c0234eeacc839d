"""What the emulated device costs: training steps and single operators, beside the same on the plain CPU."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import _sheet
import torch
import torch.nn.functional as F
from torch import nn

import gapless
from gapless.emulate.emulator import Emulator


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(width, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


def steps(device: str, width: int, batch: int, length: int) -> Callable[[], None]:
    """A training step of a four-block language model on `device`."""
    torch.manual_seed(0)
    blocks = [Block(width, 4) for _ in range(4)]
    model = nn.Sequential(nn.Embedding(256, width), *blocks, nn.Linear(width, 256)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        tokens = torch.randint(256, (batch, length), device=device)
        loss = F.cross_entropy(model(tokens).view(-1, 256), tokens.view(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def timed(step: Callable[[], None], repeats: int) -> list[float]:
    """Seconds of each of `repeats` calls, after one that does not count."""
    step()
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        step()
        found.append(time.perf_counter() - began)
    return found


def model_rows(rounds: int) -> list[list[object]]:
    rows: list[list[object]] = []
    for width, batch, length in ((64, 4, 32), (128, 8, 64), (256, 8, 128)):
        plain, emulated, priced = [], [], []
        for _ in range(rounds):
            plain += timed(steps("cpu", width, batch, length), 5)
            with gapless.emulate():
                emulated += timed(steps("cuda", width, batch, length), 5)
            with Emulator(programme=True):
                priced += timed(steps("cuda", width, batch, length), 5)
        a, b, c = map(statistics.median, (plain, emulated, priced))
        name = f"width {width}, {batch}×{length} tokens"
        times = [f"{time * 1e3:.1f}" for time in (a, b, c)]
        rows.append([name, *times, f"{b / a:.2f}", f"{c / b:.2f}"])
    return rows


def operator_rows(rounds: int) -> list[list[object]]:
    def per_call(device: str, kind: str) -> float:
        x = torch.ones(3, device=device)
        y = x.clone().requires_grad_() if kind == "add with a gradient" else x
        add = torch.add
        best = []
        for _ in range(rounds):
            began = time.perf_counter()
            if kind == "view":
                for _ in range(2000):
                    x.view(3, 1)
            else:
                for _ in range(2000):
                    add(x, y)
            best.append((time.perf_counter() - began) / 2000)
        return min(best) * 1e6

    rows: list[list[object]] = []
    for kind in ("add", "add with a gradient", "view"):
        plain = per_call("cpu", kind)
        with gapless.emulate():
            emulated, host = per_call("cuda", kind), per_call("cpu", kind)
        rows.append([kind, f"{plain:.1f}", f"{emulated:.1f}", f"{host:.1f}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    text = _sheet.header(
        "Overhead of the emulated device",
        "python benchmarks/overhead.py",
        "one thread; plain and emulated in turn in one process, five steps each a round, medians over all "
        "rounds; operators: best of the rounds, 2000 calls each",
    )
    text += "## A training step (AdamW, four transformer blocks)\n\n"
    text += _sheet.table(
        [
            "model",
            "plain CPU, ms",
            "emulated, ms",
            "recording for prices, ms",
            "emulated / plain",
            "recording / not",
        ],
        model_rows(rounds),
    )
    text += "\n## One small operator (3 elements)\n\n"
    text += _sheet.table(
        ["call", "plain, µs", "emulated device, µs", "host tensors while emulating, µs"],
        operator_rows(rounds),
    )
    print(_sheet.write("overhead", text).read_text())


if __name__ == "__main__":
    main()
