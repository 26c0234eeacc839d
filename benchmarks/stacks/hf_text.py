"""Hugging Face Trainer: a BERT classifier with evaluation and a metric, fp32."""
# By hand: 6 to 8 in each step: three pinned copies that block, a mask check, isnan and isinf of the loss;
# every fifth step loss and norm logged.

import tempfile

import _tiny
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

tokenizer = _tiny.tokenizer()
rows = [{**tokenizer(text), "label": n % 2} for n, text in enumerate(_tiny.sentences(120))]
for row in rows:
    row.pop("token_type_ids", None)
torch.manual_seed(0)
sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
model = BertForSequenceClassification(BertConfig(vocab_size=64, num_labels=2, **sizes))


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=14,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        eval_strategy="steps",
        eval_steps=6,
        save_steps=6,
        load_best_model_at_end=True,
        logging_steps=5,
        report_to="none",
        use_cpu=_tiny.device() == "cpu",
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=rows[:100],
        eval_dataset=rows[100:],
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=accuracy,
    )
    trainer.train()
