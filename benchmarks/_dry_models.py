"""Training steps of models that `dry.py` runs with values and without."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

MODELS: dict[str, Callable[[], None]] = {}


def model(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def register(step: Callable[[], None]) -> Callable[[], None]:
        MODELS[name] = step
        return step

    return register


def _train(
    net: nn.Module, loss_of: Callable[[nn.Module], torch.Tensor], half: bool = False, **how: Any
) -> None:
    net = net.cuda().train()
    optimizer = torch.optim.AdamW(net.parameters(), **how)
    for _ in range(2):
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            loss = loss_of(net)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def _language(net: nn.Module, vocabulary: int = 1000, half: bool = False) -> None:
    ids = torch.randint(0, vocabulary, (2, 64), device="cuda")
    _train(net, lambda model: model(input_ids=ids, labels=ids).loss, half)


def _vision(net: nn.Module, classes: int = 10, size: int = 64, half: bool = False) -> None:
    images = torch.randn(4, 3, size, size, device="cuda")
    labels = torch.randint(0, classes, (4,), device="cuda")

    def loss(model: nn.Module) -> torch.Tensor:
        out = model(images)
        return functional.cross_entropy(getattr(out, "logits", out), labels)

    _train(net, loss, half)


class _Residual(nn.Module):
    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True),
            nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.short = nn.Conv2d(into, out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.short(x), inplace=True)


@model("residual network")
def _residual() -> None:
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    stages = [_Residual(a, b, s) for a, b, s in ((64, 64, 1), (64, 128, 2), (128, 256, 2))]
    _vision(nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)))


@model("U-Net, autocast")
def _unet() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Conv2d(3, 64, 3, 2, 1)
            self.middle = nn.Sequential(nn.GroupNorm(8, 64), nn.SiLU(), nn.Conv2d(64, 64, 3, 1, 1))
            self.up = nn.ConvTranspose2d(64, 32, 2, 2)
            self.head = nn.Conv2d(35, 10, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            up = self.up(self.middle(self.down(x)))
            return self.head(torch.cat([up, x], 1)).mean((2, 3))

    _vision(Net(), half=True)


@model("transformer encoder")
def _encoder() -> None:
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    net = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(256, 500))
    x = torch.randn(4, 128, 256, device="cuda")
    y = torch.randint(0, 500, (4 * 128,), device="cuda")
    _train(net, lambda model: functional.cross_entropy(model(x).view(-1, 500), y))


@model("GPT-2")
def _gpt2() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    _language(GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_embd=256, n_layer=2, n_head=4)))


@model("Llama, checkpointed, autocast")
def _llama() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    net = LlamaForCausalLM(config)
    net.gradient_checkpointing_enable()
    _language(net, half=True)


@model("BERT")
def _bert() -> None:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=1000, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512
    )
    _language(BertForMaskedLM(config))


@model("T5")
def _t5() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    size = {"vocab_size": 1000, "d_model": 256, "d_kv": 64, "d_ff": 512, "num_layers": 2, "num_heads": 4}
    config = T5Config(**size, decoder_start_token_id=0)
    _language(T5ForConditionalGeneration(config))


@model("Qwen3, bfloat16")
def _qwen() -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64,
    )  # fmt: skip
    _language(Qwen3ForCausalLM(config).to(torch.bfloat16))


@model("ViT")
def _vit() -> None:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=192, num_hidden_layers=2, num_attention_heads=3, intermediate_size=384, image_size=64,
        patch_size=8, num_labels=10,
    )  # fmt: skip
    _vision(ViTForImageClassification(config))


@model("ConvNeXt")
def _convnext() -> None:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(hidden_sizes=[32, 64, 128, 256], depths=[1, 1, 1, 1], num_labels=10)
    _vision(ConvNextForImageClassification(config))


def print_large(steps: int = 4) -> None:
    """Train a 7B model for `steps` steps and print times (s) and memory (bytes) as JSON."""
    from transformers import LlamaConfig, LlamaForCausalLM

    import gapless

    with gapless.emulate(dry=True):
        began = time.perf_counter()
        config = LlamaConfig(max_position_embeddings=4096)
        net = LlamaForCausalLM(config).to(torch.bfloat16).cuda()
        net.gradient_checkpointing_enable()
        built = time.perf_counter() - began
        optimizer = torch.optim.AdamW(net.parameters())
        ids = torch.randint(0, config.vocab_size, (1, 4096), device="cuda")
        taken = []
        for _ in range(steps):
            began = time.perf_counter()
            net(input_ids=ids, labels=ids).loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            taken.append(time.perf_counter() - began)
        peak = torch.cuda.max_memory_allocated()
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result = {"build": built, "first": taken[0], "step": min(taken), "resident": resident, "peak": peak}
    print(json.dumps(result))
