"""DeepSpeed: ZeRO stage 1, bf16, clipping and a warm-up."""

import _deepspeed

_deepspeed.train(1)
