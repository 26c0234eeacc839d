"""What the emulated device records of its memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from gapless.analyze.run.steps import find_steps
from gapless.emulation.emulator import Emulator
from gapless.emulation.memory.memory_run import NOT_MODELLED
from gapless.emulation.memory.requests import reports_storage_ends
from gapless.emulation.options import EmulatorOptions
from gapless.model.memory import ALLOC, FREE, STEP, MemoryRun, check
from gapless.model.session import decode, encode
from gapless.torch_internals import VERSION

pytestmark = pytest.mark.skipif(
    not reports_storage_ends(), reason=f"torch 2.{VERSION[1]} does not tell when storages end"
)


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(EmulatorOptions("t4", memory=True)) as active:
        yield active


def memory_run(emulator: Emulator) -> MemoryRun:
    (run,) = emulator.session().memory
    assert check(run) == ""
    return run


def kinds(run: MemoryRun) -> dict[str, int]:
    """Bytes asked for by kind."""
    sizes: dict[str, int] = {}
    for action, size, place in zip(run.action, run.size, run.place, strict=True):
        if action == ALLOC:
            kind = run.places[place].kind
            sizes[kind] = sizes.get(kind, 0) + size
    return sizes


def allocations(run: MemoryRun) -> list[int]:
    return [size for action, size in zip(run.action, run.size, strict=True) if action == ALLOC]


def test_nothing_is_recorded_unless_asked() -> None:
    with Emulator() as emulator:
        torch.zeros(10, device="cuda")
        assert emulator.session().memory == ()


def test_a_tensor_comes_and_goes(emulator: Emulator) -> None:
    tensor = torch.empty(100, device="cuda")
    two = torch.empty(50, device="cuda")
    del tensor
    run = memory_run(emulator)
    assert run.action == (ALLOC, ALLOC, FREE)
    assert run.size == (400, 200, 0)
    assert run.ident == (0, 1, 0)
    del two
    assert memory_run(emulator).action == (ALLOC, ALLOC, FREE, FREE)


def test_a_view_keeps_it_and_the_host_does_not_count(emulator: Emulator) -> None:
    tensor = torch.empty(100, device="cuda")
    view = tensor[:10]
    del tensor
    host = torch.empty(1000)
    assert memory_run(emulator).action == (ALLOC,)
    del view, host
    assert memory_run(emulator).action == (ALLOC, FREE)


def test_temporaries_end_before_the_next_is_asked_for(emulator: Emulator) -> None:
    x = torch.ones(256, device="cuda")
    y = (x + 1) * 2
    run = memory_run(emulator)
    assert run.action == (ALLOC, ALLOC, ALLOC, FREE)
    assert run.ident[-1] == 1  # x + 1, when its product is there
    del y


def test_in_place_work_asks_for_nothing(emulator: Emulator) -> None:
    x = torch.ones(256, device="cuda")
    x.add_(1).mul_(2)
    assert allocations(memory_run(emulator)) == [1024]


def test_saved_tensors_live_until_backward(emulator: Emulator) -> None:
    x = torch.ones(256, device="cuda", requires_grad=True)
    loss = (x * 2).exp().sum()
    before = memory_run(emulator).action.count(FREE)
    loss.backward()
    run = memory_run(emulator)
    assert before < run.action.count(FREE)
    assert kinds(run)["backward"] > 0


def train(steps: int = 3, **options: object) -> None:
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        batch = torch.ones(32, 64).cuda()
        loss = (model(batch) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_kinds_are_recognized_by_their_holder(emulator: Emulator) -> None:
    train()
    run = memory_run(emulator)
    sizes = kinds(run)
    weights = 4 * (64 * 128 + 128 + 128 * 64 + 64)
    assert sizes["parameter"] == weights
    assert sizes["gradient"] == 3 * weights
    assert sizes["optimizer"] >= 2 * weights
    assert sizes["batch"] == 3 * 4 * 32 * 64
    assert [shape for _, shape in run.batches if len(shape) == 2 and shape[0] == 32] == [(32, 64)] * 3
    assert run.action.count(STEP) == 3


def test_lines_of_backward_are_those_of_the_forward(emulator: Emulator) -> None:
    train()
    run = memory_run(emulator)
    lines = {
        run.line(place).code
        for place in set(run.place)
        if place >= 0 and run.places[place].kind in ("backward", "gradient")
    }
    assert "loss = (model(batch) ** 2).mean()" in lines


def test_cublas_takes_a_workspace_for_each_thread_once(emulator: Emulator) -> None:
    train()
    assert kinds(memory_run(emulator))["workspace"] == 2 * 8_519_680


def test_hopper_has_a_larger_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with Emulator(EmulatorOptions("h100", memory=True)) as emulator:
        torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
        assert kinds(memory_run(emulator))["workspace"] == 32 << 20


def test_the_variable_chooses_the_workspace(monkeypatch: pytest.MonkeyPatch, emulator: Emulator) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8")
    torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
    assert kinds(memory_run(emulator))["workspace"] == (2 * 4096 + 8 * 16) << 10


def test_autocast_asks_for_half(emulator: Emulator) -> None:
    x = torch.ones(64, 64, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        x @ x
    sizes = allocations(memory_run(emulator))
    assert sizes[0] == 4 * 64 * 64
    assert 2 * 64 * 64 in sizes


def test_a_mask_of_dropout_takes_a_byte(emulator: Emulator) -> None:
    x = torch.ones(1024, device="cuda", requires_grad=True)
    before = torch.cuda.memory_allocated()
    kept = nn.functional.dropout(x, 0.5, True)
    assert kept.grad_fn is not None
    assert kept.grad_fn.name() == "NativeDropoutBackward0"
    assert torch.cuda.memory_allocated() - before == 4096 + 1024
    assert sorted(allocations(memory_run(emulator))) == [1024, 4096, 4096]


@pytest.mark.parametrize("p", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("train", [False, True])
def test_dropout_is_one_kernel_where_cuda_has_it(emulator: Emulator, p: float, train: bool) -> None:
    x = torch.randn(2000, device="cuda", requires_grad=True)
    out = torch.dropout(x, p, train)
    out.sum().backward()
    assert x.grad is not None
    fused = train and 0 < p < 1
    assert ("NativeDropout" in str(out.grad_fn)) == fused
    scale = (out / x).detach().cpu()
    expected_scale = torch.tensor(1 / (1 - p) if fused else 1.0)
    assert all(torch.isclose(value, expected_scale) or (value == 0 and train) for value in scale)
    assert torch.equal(x.grad.cpu() != 0, scale != 0)


def test_dropout_in_place_keeps_numbers(emulator: Emulator) -> None:
    """`dropout_` is no kernel of its own on CUDA either: what it multiplies with has the input's type."""
    x = torch.ones(1024, device="cuda")
    nn.functional.dropout(x, 0.5, True, inplace=True)
    assert sorted(allocations(memory_run(emulator))) == [4096, 4096]


def test_a_mask_of_the_users_own_takes_what_it_says(emulator: Emulator) -> None:
    torch.empty(1024, device="cuda").bernoulli_(0.5)
    assert allocations(memory_run(emulator)) == [4096]


def test_settings_and_fraction_are_reported(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128")
    torch.cuda.set_per_process_memory_fraction(0.5)
    torch.ones(1, device="cuda")
    run = memory_run(emulator)
    assert run.settings == "max_split_size_mb:128,per_process_memory_fraction:0.5"
    assert run.gpu == "Tesla T4"
    assert 0 < run.limit < run.total_memory
    assert NOT_MODELLED in run.notes


def test_each_device_has_its_own_run() -> None:
    with Emulator(EmulatorOptions(devices=2, memory=True)) as emulator:
        torch.ones(1, device="cuda:1")
        torch.ones(2, device="cuda:0")
        runs = emulator.session().memory
    assert [(run.device, allocations(run)) for run in runs] == [(0, [8]), (1, [4])]


def test_the_cache_that_is_emptied_is_marked(emulator: Emulator) -> None:
    from gapless.model.memory import EMPTY

    tensor = torch.ones(10, device="cuda")
    del tensor
    torch.cuda.empty_cache()
    assert EMPTY in memory_run(emulator).action


def test_recorded_memory_survives_saving(emulator: Emulator) -> None:
    train()
    session = emulator.session()
    assert decode(encode(session)).memory == session.memory


def test_steps_of_memory_are_those_of_the_analysis(emulator: Emulator) -> None:
    """However many optimizers make an iteration, inside the backward pass or behind it."""
    inside, behind = nn.Linear(4, 4).cuda(), nn.Linear(4, 4).cuda()
    optimizers = {parameter: torch.optim.SGD([parameter], 0.1) for parameter in inside.parameters()}
    later = [torch.optim.SGD([parameter], 0.1) for parameter in behind.parameters()]
    for parameter in inside.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: optimizers[parameter].step())
    for _ in range(5):
        behind(inside(torch.ones(2, 4, device="cuda"))).sum().backward()
        for optimizer in later:
            optimizer.step()
    session = emulator.session()
    assert find_steps(session.marks).seen == 5
    assert session.memory[0].action.count(STEP) == 5


def test_a_module_that_is_moved_is_no_batch(emulator: Emulator) -> None:
    model = nn.BatchNorm1d(16).cuda()
    run = memory_run(emulator)
    assert run.batches == ()
    assert kinds(run) == {"parameter": 4 * 4 * 16 + 8}
    del model


def test_a_frozen_module_is_distinguished_from_activations(emulator: Emulator) -> None:
    model = nn.Linear(16, 16).cuda().requires_grad_(False)
    model(torch.ones(2, 16).cuda())
    sizes = kinds(memory_run(emulator))
    assert sizes["parameter"] == 4 * (16 * 16 + 16)
    assert sizes["batch"] == 4 * 2 * 16


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("gpu", ["t4", "a100"])
def test_attention_is_one_kernel(gpu: str, dropout: float, dtype: torch.dtype) -> None:
    batch, heads, length, width = 2, 4, 96, 8
    shape = (batch, heads, length, width)
    with Emulator(EmulatorOptions(gpu, memory=True)) as emulator:
        parts = [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3)]
        out = nn.functional.scaled_dot_product_attention(*parts, dropout_p=dropout)
        whole = batch * heads * length * width * dtype.itemsize
        rows = 4 * batch * heads * length
        flash = gpu == "a100" and dtype is torch.float16
        # flash attention keeps the state of its generator on the device, the other kernel on the host
        assert allocations(memory_run(emulator))[3:] == [whole, rows, *([16, 8] if flash else [])]
        out.sum().backward()
        sizes = allocations(memory_run(emulator))
    assert sizes.count(whole) >= 7  # three, the result, three gradients
    assert 4 * batch * heads * length * length not in sizes
    assert (4 * batch * heads * 128 in sizes) == flash  # what its backward pass adds up in
    assert all(part.grad is not None for part in parts)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_gives_what_it_gives_on_the_cpu(emulator: Emulator, causal: bool) -> None:
    torch.manual_seed(0)
    host = [torch.randn(2, 3, 10, 4, requires_grad=True) for _ in range(3)]
    on_device = [tensor.detach().cuda().requires_grad_() for tensor in host]
    attend = nn.functional.scaled_dot_product_attention
    expected, result = attend(*host, is_causal=causal), attend(*on_device, is_causal=causal)
    (expected**2).sum().backward()
    (result**2).sum().backward()
    assert torch.equal(result.cpu(), expected)
    for tensor, other in zip(on_device, host, strict=True):
        assert tensor.grad is not None
        assert other.grad is not None
        assert torch.allclose(tensor.grad.cpu(), other.grad)


def test_attention_without_fused_kernels_takes_its_steps(emulator: Emulator) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    parts = [torch.randn(1, 2, 64, 8, device="cuda", requires_grad=True) for _ in range(3)]
    with sdpa_kernel(SDPBackend.MATH):
        nn.functional.scaled_dot_product_attention(*parts)
    assert 4 * 2 * 64 * 64 in allocations(memory_run(emulator))


def test_gradients_of_one_tensor_are_added_in_place(emulator: Emulator) -> None:
    x = torch.ones(1000, device="cuda", requires_grad=True)
    y = x * 2
    loss = (y.exp() * y).sum()
    before = len(allocations(memory_run(emulator)))
    loss.backward()
    after = allocations(memory_run(emulator))[before:]
    # 1 and its like; the product's two; exp's; what they add up to is in place; the gradient of x
    assert after == [4, 4000, 4000, 4000, 4000]
    assert x.grad is not None


def test_a_storage_that_is_resized_is_accounted(emulator: Emulator) -> None:
    """As FSDP frees and refills its gathered parameters, and as ``resize_`` and ``out=`` grow a tensor."""
    MIB = 1 << 20  # noqa: N806
    x = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    base = torch.cuda.memory_allocated()
    x.untyped_storage().resize_(0)
    assert torch.cuda.memory_allocated() == base - MIB
    x.untyped_storage().resize_(2 * MIB)
    assert torch.cuda.memory_allocated() == base + MIB
    x.resize_(3 * MIB)
    assert torch.cuda.memory_allocated() == base + 2 * MIB
    out = torch.empty(0, device="cuda")
    torch.add(torch.ones(MIB, device="cuda"), 1, out=out)
    assert torch.cuda.memory_allocated() == base + 2 * MIB + 4 * MIB
    assert allocations(memory_run(emulator))[:3] == [MIB, 2 * MIB, 3 * MIB]


def test_selective_checkpointing_saves_attention_by_the_name_of_cudas_kernel() -> None:
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    ops = torch.ops.aten
    saved = [ops._scaled_dot_product_flash_attention.default, ops.mm.default]

    def context() -> object:
        return create_selective_checkpoint_contexts(saved)

    def block(x: torch.Tensor) -> torch.Tensor:
        heads = (x @ x.transpose(-2, -1) @ x).unflatten(-1, (2, 8)).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(-2)

    with Emulator(EmulatorOptions("a100", memory=True)) as emulator:
        x = torch.randn(2, 32, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        before = len(allocations(memory_run(emulator)))
        checkpoint(block, x, use_reentrant=False, context_fn=context).sum().backward()
        assert x.grad is not None
        sizes = allocations(memory_run(emulator))[before:]
    assert sizes.count(4 * 2 * 2 * 32) == 1  # the sums of its rows: it ran once
