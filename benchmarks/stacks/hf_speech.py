"""Hugging Face Trainer: wav2vec2 with CTC on waveforms of several lengths."""
# By hand: 22 to 24 in each step: three pinned copies, CTC 5 + 3 (lengths to the CPU and back to the GPU,
# again in backward), the time mask made from NumPy and written by a boolean mask (1, in backward 2), lengths
# listed, labels compared and selected, a number written at indices, a mask check, isnan and isinf; every
# fifth step loss and norm logged.

import tempfile

import _tiny
import torch
from transformers import Trainer, TrainingArguments, Wav2Vec2Config, Wav2Vec2ForCTC

torch.manual_seed(0)
rows = [
    {"input_values": torch.randn(3200 + 160 * (n % 5)), "labels": torch.randint(1, 20, (6 + n % 4,))}
    for n in range(64)
]


def collate(batch):
    padded = torch.nn.utils.rnn.pad_sequence([row["input_values"] for row in batch], batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence(
        [torch.ones(len(row["input_values"])) for row in batch], batch_first=True
    )
    labels = torch.nn.utils.rnn.pad_sequence(
        [row["labels"] for row in batch], batch_first=True, padding_value=-100
    )
    return {"input_values": padded, "attention_mask": mask.long(), "labels": labels}


config = Wav2Vec2Config(
    vocab_size=24,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    conv_dim=(16, 16, 16),
    conv_stride=(5, 4, 4),
    conv_kernel=(10, 4, 4),
    num_feat_extract_layers=3,
    num_conv_pos_embeddings=16,
    num_conv_pos_embedding_groups=4,
    mask_time_length=2,
    ctc_loss_reduction="mean",
    ctc_zero_infinity=True,
)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=13,
        per_device_train_batch_size=4,
        logging_steps=5,
        report_to="none",
        use_cpu=_tiny.device() == "cpu",
    )
    Trainer(model=Wav2Vec2ForCTC(config), args=arguments, train_dataset=rows, data_collator=collate).train()
