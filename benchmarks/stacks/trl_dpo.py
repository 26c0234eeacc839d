"""TRL: direct preference optimisation, LoRA."""
# By hand: 30 to 32 in each step: three pinned copies that block, two mask checks (policy and reference),
# hidden states and labels selected by a mask for both (4, in backward the selection's and
# `masked_scatter`'s), entropy and accuracy compared and read, two boolean masks, eleven values read for
# metrics, isnan and isinf; every fifth step loss and norm logged. Without Triton TRL selects nothing by
# masks there, and waits 24 times.

import tempfile

import _tiny
from datasets import Dataset
from peft import LoraConfig
from trl import DPOConfig, DPOTrainer

first, second = _tiny.sentences(64, 5), _tiny.sentences(128, 5)[64:]
data = Dataset.from_dict({"prompt": _tiny.sentences(64, 3), "chosen": first, "rejected": second})
with tempfile.TemporaryDirectory() as folder:
    trainer = DPOTrainer(
        model=_tiny.llama(),
        args=DPOConfig(
            output_dir=folder,
            max_steps=13,
            per_device_train_batch_size=2,
            bf16=True,
            logging_steps=5,
            report_to="none",
            use_cpu=_tiny.device() == "cpu",
        ),
        train_dataset=data,
        processing_class=_tiny.tokenizer(),
        peft_config=LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"]),
    )
    trainer.train()
