"""Hugging Face Trainer: a vision transformer on images, bf16."""
# By hand: 4 to 6 in each step: two pinned copies that block, isnan and isinf of the loss; every fifth step
# loss and norm logged.

import tempfile

import _tiny
import torch
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

torch.manual_seed(0)
rows = [{"pixel_values": torch.randn(3, 32, 32), "labels": n % 4} for n in range(120)]
sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
model = ViTForImageClassification(ViTConfig(image_size=32, patch_size=8, num_labels=4, **sizes))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=14,
        per_device_train_batch_size=8,
        eval_strategy="steps",
        eval_steps=7,
        bf16=True,
        optim="adamw_torch_fused",
        logging_steps=5,
        report_to="none",
        use_cpu=_tiny.device() == "cpu",
    )
    Trainer(model=model, args=arguments, train_dataset=rows[:100], eval_dataset=rows[100:]).train()
