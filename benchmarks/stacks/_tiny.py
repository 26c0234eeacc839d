"""Tiny models, tokenizers and data, made here: nothing is downloaded."""

from __future__ import annotations

import sys

WORDS = [
    "a",
    "bird",
    "can",
    "fly",
    "high",
    "over",
    "the",
    "old",
    "town",
    "and",
    "sing",
    "while",
    "people",
    "walk",
    "home",
    "in",
    "rain",
    "or",
    "sun",
    "today",
]


def device() -> str:
    """Where the script shall train: "cuda", or what follows its name."""
    return sys.argv[1] if len(sys.argv) > 1 else "cuda"


def tokenizer():
    """A tokenizer of whole words with a chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<s>", "</s>", "<unk>", "user", "assistant", ":", *WORDS]
    word_tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(names)}, unk_token="<unk>"))
    word_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=word_tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    fast.chat_template = (
        "{% for message in messages %}{{ message['role'] + ' : ' + message['content'] + ' </s> ' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant : ' }}{% endif %}"
    )
    return fast


def llama(**options):
    """A Llama of two layers with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = LlamaConfig(
        vocab_size=64, num_key_value_heads=2, max_position_embeddings=128, **special, **sizes
    )
    return LlamaForCausalLM(config, **options)


def sentences(count: int, length: int = 8) -> list[str]:
    """Sentences of `length` words, the same ones each time."""
    import random

    order = random.Random(0)
    return [" ".join(order.choices(WORDS, k=length)) for _ in range(count)]
