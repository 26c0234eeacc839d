"""DeepSpeed: ZeRO stage 2, bf16, clipping and a warm-up."""

import _deepspeed

_deepspeed.train(2)
