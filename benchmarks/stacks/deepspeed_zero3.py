"""DeepSpeed: ZeRO stage 3, bf16, clipping and a warm-up."""
# By hand: 7 to 8 in each step: two copies of the batch, one check of the norm, `torch.tensor(-1.0)`, two
# streams synchronized, the timer's synchronize before a step and, from the third on, behind it.

import _deepspeed

_deepspeed.train(3)
