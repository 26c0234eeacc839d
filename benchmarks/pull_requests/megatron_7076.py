"""Megatron-LM's `pretrain_gpt.py` on random tokens: 24 dense layers of its own, logged at each step."""

from __future__ import annotations

import runpy
import sys
import typing

import torch

LENGTH, WORDS = 2048, 32_000
OPTIONS = """
    --num-layers 24 --hidden-size 3072 --num-attention-heads 24 --seq-length 2048
    --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 64 --train-iters 14
    --lr 1e-4 --min-lr 1e-5 --bf16 --transformer-impl local --no-persist-layer-norm
    --no-gradient-accumulation-fusion --no-masked-softmax-fusion --no-bias-gelu-fusion
    --no-bias-dropout-fusion --no-rope-fusion --disable-bias-linear --mock-data
    --tokenizer-type NullTokenizer --vocab-size 32000 --split 100,0,0 --num-workers 0
    --use-distributed-optimizer --overlap-grad-reduce --log-interval 1 --eval-iters 0
    --eval-interval 1000 --log-num-zeros-in-grad
"""


class Sequences(torch.utils.data.Dataset):
    """Random tokens as its datasets give them, which have an index that is compiled first."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, place: int | None) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, WORDS, (LENGTH + 1,))
        return {
            "tokens": tokens[:-1], "labels": tokens[1:], "loss_mask": torch.ones(LENGTH),
            "position_ids": torch.arange(LENGTH),
        }  # fmt: skip


def main() -> None:
    if not hasattr(typing, "override"):  # new in Python 3.12
        typing.override = lambda method: method
    from megatron.core.datasets import utils
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder

    utils.compile_helpers = lambda: None
    BlendedMegatronDatasetBuilder.build = lambda self: (Sequences(), None, None)
    sys.argv = ["pretrain_gpt.py", *OPTIONS.split()]
    runpy.run_module("pretrain_gpt", run_name="__main__")


if __name__ == "__main__":
    main()
