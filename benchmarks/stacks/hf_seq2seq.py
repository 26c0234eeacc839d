"""Hugging Face Seq2SeqTrainer: T5 with generation at each evaluation."""
# By hand: 8 to 10 in each step: four pinned copies that block, two mask checks, isnan and isinf of the loss;
# every fifth step loss and norm logged.

import tempfile

import _tiny
import torch
from transformers import (
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
)

torch.manual_seed(0)
tokenizer = _tiny.tokenizer()
rows = []
for text in _tiny.sentences(80):
    words = tokenizer(text)["input_ids"]
    rows.append({"input_ids": words, "attention_mask": [1] * len(words), "labels": words[::-1]})
config = T5Config(
    vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0
)
model = T5ForConditionalGeneration(config)


def same(prediction):
    return {"words": float((prediction.predictions >= 0).mean())}


with tempfile.TemporaryDirectory() as folder:
    arguments = Seq2SeqTrainingArguments(
        output_dir=folder,
        max_steps=14,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=8,
        eval_strategy="steps",
        eval_steps=7,
        predict_with_generate=True,
        generation_max_length=8,
        bf16=True,
        logging_steps=5,
        report_to="none",
        use_cpu=_tiny.device() == "cpu",
    )
    Seq2SeqTrainer(
        model=model,
        args=arguments,
        train_dataset=rows[:64],
        eval_dataset=rows[64:],
        data_collator=DataCollatorForSeq2Seq(tokenizer, model),
        processing_class=tokenizer,
        compute_metrics=same,
    ).train()
