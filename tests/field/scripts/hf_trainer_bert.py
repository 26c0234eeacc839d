import tempfile

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed


class Reviews(torch.utils.data.Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.lengths = rng.integers(6, 16, n)
        self.ids = rng.integers(5, 200, (n, 16))
        self.labels = rng.integers(0, 2, n)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        mask = (np.arange(16) < self.lengths[i]).astype(np.int64)
        return {"input_ids": self.ids[i] * mask, "attention_mask": mask, "labels": int(self.labels[i])}


def compute_metrics(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


set_seed(0)
config = BertConfig(
    vocab_size=200,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=32,
    num_labels=2,
)
model = BertForSequenceClassification(config)
output = tempfile.mkdtemp()
args = TrainingArguments(
    output_dir=output,
    per_device_train_batch_size=8,
    num_train_epochs=1,
    learning_rate=1e-3,
    logging_steps=5,
    eval_strategy="steps",
    eval_steps=12,
    save_steps=10,
    save_total_limit=1,
    report_to=[],
    disable_tqdm=True,
)
trainer = Trainer(  # waits: set-up
    model=model,
    args=args,
    train_dataset=Reviews(272, 1),
    eval_dataset=Reviews(32, 2),
    compute_metrics=compute_metrics,
)
# waits: 6 every step; 2 every 5 steps; many each checkpoint; evaluation; set-up; may wait: after, first step
result = trainer.train()
print("steps", result.global_step)
print("evaluation", sorted(trainer.evaluate()))  # waits: evaluation
trainer.save_model(output + "/final")  # waits: after
