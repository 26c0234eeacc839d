"""peft: LoRA on a frozen causal model in a plain loop, bf16 autocast, gradient checkpointing, then a saved adapter."""
# By hand: 1 in each step: the mask check; the copies are pinned and do not block.

import tempfile

import _tiny
import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch.utils.data import DataLoader
from transformers import DataCollatorForLanguageModeling, get_linear_schedule_with_warmup

device = _tiny.device()
tokenizer = _tiny.tokenizer()
model = _tiny.llama()
model.gradient_checkpointing_enable()
model.enable_input_require_grads()
model = get_peft_model(model, LoraConfig(task_type=TaskType.CAUSAL_LM, r=8, lora_alpha=16, lora_dropout=0.1))
model.print_trainable_parameters()
model.to(device)

examples = [tokenizer(text) for text in _tiny.sentences(64)]
collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)
loader = DataLoader(examples, batch_size=4, shuffle=True, collate_fn=collate, pin_memory=device == "cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = get_linear_schedule_with_warmup(optimizer, 2, len(loader))

model.train()
total = 0.0
for step, batch in enumerate(loader):
    batch = {key: value.to(device, non_blocking=True) for key, value in batch.items()}
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = model(**batch).loss
    total += loss.detach().float()
    loss.backward()
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    if step == 13:
        break
print("loss", (total / (step + 1)).item())
with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
