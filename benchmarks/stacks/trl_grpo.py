"""TRL: group-relative policy optimisation with a reward of our own."""

import tempfile

import _tiny
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


def short(completions, **_):
    return [-float(len(text)) for text in completions]


data = Dataset.from_dict({"prompt": _tiny.sentences(64, 4)})
with tempfile.TemporaryDirectory() as folder:
    trainer = GRPOTrainer(
        model=_tiny.llama(),
        reward_funcs=short,
        args=GRPOConfig(
            output_dir=folder,
            max_steps=13,
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=6,
            bf16=True,
            logging_steps=1,
            report_to="none",
            use_cpu=_tiny.device() == "cpu",
        ),
        train_dataset=data,
        processing_class=_tiny.tokenizer(),
    )
    trainer.train()
