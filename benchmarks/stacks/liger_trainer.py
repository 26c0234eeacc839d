"""Liger's kernels under Hugging Face Trainer."""
# By hand: 9 to 11 in each step: three pinned copies that block, a mask check, the number of targets read,
# `torch.equal` with a `torch.tensor(1.0)` made for it in backward, isnan and isinf; every fifth step loss and
# norm logged.

import tempfile

import _tiny
from liger_kernel.transformers import apply_liger_kernel_to_llama
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

if _tiny.device() != "cpu":
    apply_liger_kernel_to_llama()
tokenizer = _tiny.tokenizer()
rows = [tokenizer(text) for text in _tiny.sentences(64)]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=13,
        per_device_train_batch_size=4,
        bf16=True,
        logging_steps=5,
        report_to="none",
        use_cpu=_tiny.device() == "cpu",
    )
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    Trainer(model=_tiny.llama(), args=arguments, train_dataset=rows, data_collator=collate).train()
