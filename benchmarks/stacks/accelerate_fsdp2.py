"""Accelerate: FSDP2 through its plugin, one process, with gradient accumulation and a gathered metric."""
# By hand: 4 to 5 in each step: the two tensors of two micro-batches; every fourth step the printed loss.

import os

import _tiny
import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from torch.utils.data import DataLoader
from transformers import default_data_collator, get_linear_schedule_with_warmup

for name, value in {
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29512",
    "RANK": "0",
    "WORLD_SIZE": "1",
}.items():
    os.environ.setdefault(name, value)
os.environ.setdefault("LOCAL_RANK", "0")

plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2,
    auto_wrap_policy="transformer_based_wrap",
    transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
    reshard_after_forward=True,
)
accelerator = Accelerator(
    mixed_precision="bf16", gradient_accumulation_steps=2, fsdp_plugin=plugin, cpu=_tiny.device() == "cpu"
)
tokenizer = _tiny.tokenizer()
rows = [tokenizer(text) for text in _tiny.sentences(128, 12)]
rows = [{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in rows]
loader = DataLoader(rows, batch_size=4, shuffle=True, collate_fn=default_data_collator)
model = _tiny.llama()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = get_linear_schedule_with_warmup(optimizer, 2, 16)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

model.train()
for step, batch in enumerate(loader):
    with accelerator.accumulate(model):
        loss = model(**batch).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    if step % 8 == 0:
        accelerator.print(step, accelerator.gather(loss.detach()).mean().item())
accelerator.end_training()
