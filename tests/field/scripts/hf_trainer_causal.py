import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=128,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    bos_token_id=1,
    eos_token_id=2,
)
model = LlamaForCausalLM(config)
print(f"{sum(p.numel() for p in model.parameters())} parameters")


class Blocks(torch.utils.data.Dataset):
    def __init__(self, n, length=24):
        self.tokens = torch.randint(3, 128, (n, length))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        ids = self.tokens[i]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


args = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    max_steps=22,
    learning_rate=3e-4,
    lr_scheduler_type="cosine",
    warmup_steps=2,
    bf16=True,
    logging_steps=5,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
trainer = Trainer(model=model, args=args, train_dataset=Blocks(200))  # waits: set-up
trainer.train()  # waits: 12 every step; 2 every 5 steps; set-up; may wait: after, first step

model.eval()
prompt = torch.tensor([[1, 17, 23]], device=model.device)  # waits: after
with torch.no_grad():
    logits = model(prompt).logits  # waits: evaluation
print("next token", logits[0, -1].argmax().item())  # waits: after
