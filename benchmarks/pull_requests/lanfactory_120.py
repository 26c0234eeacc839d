"""LANfactory's trainer on batches that lie on the GPU: a multilayer perceptron of three hidden layers.

The module is loaded by its file, as its package imports JAX.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path

import torch

STEPS, ROWS, FEATURES = 400, 50_000, 7
NETWORK = {"layer_sizes": [100, 100, 100, 1], "activations": ["tanh", "tanh", "tanh", "linear"]}
TRAINING = {
    "n_epochs": 1, "loss": "huber", "optimizer": "adam", "learning_rate": 1e-3, "weight_decay": 0.0,
    "lr_scheduler": None,
}  # fmt: skip


def main() -> None:
    path = next(
        Path(folder) / "lanfactory/trainers/torch_mlp.py" for folder in sys.path if "lanf" in folder.lower()
    )
    spec = importlib.util.spec_from_file_location("torch_mlp", path)
    trainers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(trainers)
    batch = torch.rand(ROWS, FEATURES, device="cuda"), torch.rand(ROWS, 1, device="cuda")
    model = trainers.TorchMLP(NETWORK, input_shape=FEATURES, network_type="lan")
    trainer = trainers.ModelTrainerTorchMLP(model, TRAINING, [batch] * STEPS, [batch])
    with tempfile.TemporaryDirectory() as folder:
        trainer.train_and_evaluate(output_folder=folder, save_outputs=False, verbose=1)


if __name__ == "__main__":
    main()
