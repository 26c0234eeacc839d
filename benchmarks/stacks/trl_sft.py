"""TRL: supervised fine-tuning with LoRA in bf16, examples packed."""
# By hand: 19 to 21 in each step: six pinned copies that block (tokens, labels, position ids, two of
# boundaries, sequence ids), a check for packed sequences, hidden states and labels selected by a mask (1 +
# 1, in backward the selection's and `masked_scatter`'s), entropy and accuracy compared and read, the token
# count made and read, isnan and isinf; every fifth step loss and norm logged. Without Triton TRL selects
# nothing by masks there, and waits 15 times.

import tempfile

import _tiny
from datasets import Dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

data = Dataset.from_dict({"text": _tiny.sentences(200, 12)})
with tempfile.TemporaryDirectory() as folder:
    trainer = SFTTrainer(
        model=_tiny.llama(),
        args=SFTConfig(
            output_dir=folder,
            max_steps=13,
            per_device_train_batch_size=2,
            bf16=True,
            packing=True,
            max_length=64,
            logging_steps=5,
            report_to="none",
            use_cpu=_tiny.device() == "cpu",
        ),
        train_dataset=data,
        processing_class=_tiny.tokenizer(),
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
    )
    trainer.train()
