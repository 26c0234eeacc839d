"""A loop around DeepSpeed's engine, as its getting-started page has it, for each ZeRO stage."""

import os

import _tiny
import torch
from torch import nn


def train(stage: int, steps: int = 13, **zero: object) -> None:
    """Train a small network under ZeRO `stage` with bf16."""
    for name, value in {"MASTER_ADDR": "localhost", "MASTER_PORT": "29514", "RANK": "0"}.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("WORLD_SIZE", "1")
    os.environ.setdefault("LOCAL_RANK", "0")
    if _tiny.device() == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 8))
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}},
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 100_000, **zero},
        "steps_per_print": 5,
    }
    deepspeed.init_distributed()
    rows = torch.utils.data.TensorDataset(torch.randn(8 * steps, 64), torch.randint(0, 8, (8 * steps,)))
    engine, _, loader, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), training_data=rows, config=config
    )
    for x, y in loader:
        x, y = x.to(engine.device, torch.bfloat16), y.to(engine.device)
        loss = nn.functional.cross_entropy(engine(x).float(), y)
        engine.backward(loss)
        engine.step()
