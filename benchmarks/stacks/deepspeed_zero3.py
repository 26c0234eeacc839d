"""DeepSpeed: ZeRO stage 3, bf16, clipping and a warm-up."""

import _deepspeed

_deepspeed.train(3)
