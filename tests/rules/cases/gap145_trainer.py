# needs: transformers
# example: from transformers import Trainer, TrainingArguments
# example: model, dataset = classifier()
import tempfile

from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

size = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
rows = [{"input_ids": [1, 2, 3, 4], "labels": number % 2} for number in range(16)]


def arguments(filtered):
    return TrainingArguments(
        tempfile.mkdtemp(), max_steps=3, per_device_train_batch_size=2, logging_strategy="no", save_strategy="no",
        report_to=[], disable_tqdm=True, logging_nan_inf_filter=filtered, max_grad_norm=0.0,
        accelerator_config={"non_blocking": True},
    )


def model():
    return BertForSequenceClassification(BertConfig(**size, intermediate_size=8, max_position_embeddings=16))


filtering = Trainer(model=model(), args=arguments(True), train_dataset=rows)  # GAP127 x27
plain = Trainer(model=model(), args=arguments(False), train_dataset=rows)  # GAP127 x27
filtering.train()  # GAP145 x6, GAP121, GAP149
plain.train()  # GAP132 x?, GAP121, GAP149
len(rows)  # no wait
