"""DeepSpeed: ZeRO stage 1, bf16, clipping and a warm-up."""
# By hand: 8 to 9 in each step: two copies of the batch, two checks of the norm, the overflow flag, a mask
# filled with a tensor (its value is read), `torch.tensor(-1.0)`, the timer's synchronize before a step and,
# from the third on, behind it.

import _deepspeed

_deepspeed.train(1)
