"""A small GPT of Megatron-Core with Transformer Engine's layers: its own schedule, DDP and optimizer."""

import os

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig

LENGTH, BATCH, VOCABULARY = 64, 4, 512


def environment():
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("MASTER_ADDR", "127.0.0.1")):
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_PORT", "29541")


def batches():
    while True:
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
        yield tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def forward_step(data, model):
    tokens, labels = (part.cuda() for part in next(data))
    places = torch.arange(LENGTH, device="cuda").expand_as(tokens)
    losses = model(tokens, places, None, labels=labels)
    return losses, lambda out: ((loss := out.float().mean()), {"loss": loss.detach()})


def main():
    environment()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1)
    config = TransformerConfig(
        num_layers=2, hidden_size=64, num_attention_heads=4, num_query_groups=2, normalization="RMSNorm",
        gated_linear_unit=True, activation_func=torch.nn.functional.silu, add_bias_linear=False,
        bf16=True, params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16,
    )  # fmt: skip
    model = GPTModel(
        config, get_gpt_layer_with_transformer_engine_spec(), VOCABULARY, LENGTH,
        position_embedding_type="rope",
    ).cuda().bfloat16()  # fmt: skip
    model = DistributedDataParallel(config, DistributedDataParallelConfig(grad_reduce_in_fp32=True), model)
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1e-3, bf16=True), [model])
    config.finalize_model_grads_func = finalize_model_grads
    schedule, data = get_forward_backward_func(), batches()
    for step in range(12):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        (losses,) = schedule(
            forward_step_func=forward_step, data_iterator=data, model=[model], num_microbatches=1,
            seq_length=LENGTH, micro_batch_size=BATCH, forward_only=False,
        )  # fmt: skip
        _, norm, _ = optimizer.step()
        if step % 5 == 0:
            print(step, losses["loss"].item(), norm)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
