"""Training without values: the same waits, the same memory, and answers that fit what made them."""

from __future__ import annotations

import contextlib
import math
import os
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import gapless
from gapless.emulation.emulator import current
from gapless.errors import NotEmulated
from gapless.model import session as sessions
from tests.emulation.dry.memory import CUDA, resident, unknown


def train(steps=3):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 512), nn.LayerNorm(512), nn.ReLU(), nn.Linear(512, 300)).to(CUDA)
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler(CUDA)
    for _ in range(steps):
        x, y = torch.randn(64, 128, device=CUDA), torch.randint(0, 300, (64,), device=CUDA)
        with torch.autocast(CUDA, torch.float16):
            hidden = checkpoint(model[:3], x, use_reentrant=False)
            loss = functional.cross_entropy(model[3](hidden), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if not torch.isfinite(loss):
            raise ValueError("the loss is not finite")
    return model, loss.item(), float(norm), scaler.get_scale(), torch.cuda.max_memory_allocated()


def test_training_waits_and_allocates_as_with_values():
    with gapless.emulate() as plain:
        _, loss, _, scale, peak = train()
    with gapless.emulate(dry=True) as emulation:
        model, dry_loss, norm, dry_scale, dry_peak = train()
        assert current().core.values.record_of(model[0].weight) is not None
    assert dry_peak == peak
    assert dry_scale == scale  # no overflow was computed, and none was assumed
    assert dry_loss == pytest.approx(loss, rel=0.3)
    assert 0 < norm < 10
    lines = [[(site.operator, site.line.line) for site in run.session.sites] for run in (plain, emulation)]
    assert lines[0] == lines[1]
    assert [e.waits for e in plain.session.events] == [e.waits for e in emulation.session.events]


def test_assumptions_are_saved_with_the_session(tmp_path):
    with gapless.emulate(dry=True) as emulation:
        train()
    by_author = {assumption.made_by: assumption for assumption in emulation.session.assumptions}
    assert any(name.startswith("isfinite") for name in by_author)
    emulation.save(tmp_path / "run.gapless.json")
    restored = sessions.load(tmp_path / "run.gapless.json")
    assert restored.assumptions == emulation.session.assumptions
    assert restored.environment.dry
    restored_report = gapless.report(restored)
    assert {assumption.kind for assumption in restored_report.assumptions} == {
        "bool"
    }  # the loss and the norm decide nothing
    assert "are assumed" in " ".join(restored_report.verdict.not_seen)
    assert any(table.title.startswith("Assumed") for table in restored_report.tables)


def test_the_same_run_gives_the_same_report():
    sentences = []
    for _ in range(2):
        with gapless.emulate(dry=True):
            sentences.append((train()[1:], unknown(64, 64).cpu().sum().item()))
    assert sentences[0] == sentences[1]


def test_losses_get_smaller_and_one_value_is_read_as_one(dry):
    logits = unknown(64, 1000)
    target = torch.randint(0, 1000, (64,), device=CUDA)
    losses = []
    for _ in range(5):
        loss = functional.cross_entropy(logits, target)
        losses.append(loss.item())
        assert loss.item() == losses[-1]
    assert losses == sorted(losses, reverse=True)
    assert all(value > 0 for value in losses)


def test_small_tensors_have_their_values(dry):
    lengths = torch.tensor([3, 5, 2], device=CUDA)
    mask = torch.arange(5, device=CUDA)[None] < lengths[:, None]
    assert mask.sum().item() == 10
    assert torch.randperm(1000, device=CUDA).sum().item() == 499_500
    large = torch.zeros(3000, 3000, device=CUDA)
    assert large.sum().item() == 0
    assert (torch.full((5000, 5000), 2.5, device=CUDA) + 1)[7, 7].item() == 3.5
    assert dry.session.assumptions == ()


def test_large_tensors_take_no_memory(dry):
    before = resident()
    big = torch.randn(1 << 30, device=CUDA)
    bigger = (big * 2 + torch.ones_like(big)).sigmoid()
    assert torch.cuda.memory_allocated() >= 2 * (4 << 30)
    assert 0 < bigger.mean().item() < 1
    assert resident() - before < 200 << 20


def test_tensors_may_be_larger_than_the_machine(dry):
    huge = torch.empty(1 << 44, dtype=torch.uint8, device=CUDA)
    assert torch.cuda.memory_allocated() == 1 << 44
    assert huge[5:].add(1).shape == ((1 << 44) - 5,)


@pytest.mark.parametrize("how", ["in place", "out=", "view", "part"])
def test_what_is_written_from_nothing_has_no_values(dry, how):
    ones, nothing = torch.ones(8, 8, device=CUDA), unknown(8, 8)
    if how == "in place":
        ones.add_(nothing)
    elif how == "out=":
        torch.mul(nothing, 2, out=ones)
    elif how == "view":
        ones.view(-1)[:] = nothing.view(-1)
    else:
        ones[3] = nothing[3]
    assert current().core.values.record_of(ones) is not None
    ones.fill_(3.0)
    assert current().core.values.record_of(ones) is None
    assert ones.sum().item() == 192


def test_errors_about_shapes_are_those_of_torch(dry):
    with pytest.raises(RuntimeError, match=r"must match|broadcast"):
        unknown(300, 300) + unknown(200, 200)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        unknown(30, 40) @ unknown(30, 40)


def test_transforms_and_hooks_run(dry):
    weight = unknown(64, 64)
    loss = lambda w, x: (x @ w).square().mean()  # noqa: E731
    x = torch.randn(16, 64, device=CUDA)
    gradient = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weight, x)
    assert gradient.shape == (16, 64, 64)
    calls = []
    leaf = unknown(64, 64).requires_grad_()
    leaf.register_hook(lambda g: calls.append(g.shape))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: calls.append(tuple(t.shape)) or t, lambda t: t):
        (leaf * leaf).sum().backward()
    assert calls == [(64, 64), (64, 64), leaf.shape]
    assert leaf.grad.stride() == leaf.stride()


# -- what the user says --------------------------------------------------------------------------------


def test_the_user_says_otherwise_by_line_and_by_tensor():
    line = _line_of_read()
    with gapless.emulate(dry=True, assume={f"{os.path.basename(__file__)}:{line}": 0.25}) as emulation:
        assert _read(unknown(300)) == 0.25
        assert gapless.assume((unknown(5) > 9).all(), False).item() is False
    assert [assumption.given for assumption in emulation.session.assumptions] == [True]
    assert gapless.report(emulation.session).assumptions == ()
    plain = torch.ones(())
    assert gapless.assume(plain, 5.0) is plain


def _read(tensor):
    return tensor.sum().item()


def _line_of_read():
    return _read.__code__.co_firstlineno + 1


def test_the_user_says_how_many_are_selected():
    def selected():
        x = unknown(1000)
        mask = x > 0
        return x[mask], mask

    place = f"{os.path.basename(__file__)}:{selected.__code__.co_firstlineno + 3}"
    with gapless.emulate(dry=True, assume={place: 0.1}):
        part, mask = selected()
        assert len(part) == mask.sum().item() == 100
    with gapless.emulate(dry=True, assume={place: 700}):
        part, mask = selected()
        assert len(part) == mask.sum().item() == 700


def test_sizes_follow_what_masks_are_made_of(dry):
    x = unknown(1000)
    assert len(x[x > 0]) == pytest.approx(500, abs=30)
    assert len((x > 1).nonzero()) == pytest.approx(159, abs=20)
    assert x[torch.isnan(x)].shape == (0,)
    assert torch.masked_select(x, torch.ones(1000, dtype=torch.bool, device=CUDA)).shape == (1000,)
    ids = torch.randint(0, 7, (1 << 23,), device=CUDA)
    assert ids.unique().shape == (7,)
    assert ids.bincount(minlength=9).shape == (9,)
    sizes = [assumption for assumption in dry.session.assumptions if assumption.kind == "size"]
    assert [size.value for size in sizes[:2]] == pytest.approx([500, 159], abs=30)
    assert [size.of for size in sizes[:2]] == [1000, 1000]


# -- loops -----------------------------------------------------------------------------------------------


def test_a_loop_that_waits_for_a_condition_ends_and_says_so(dry):
    turns = 0
    x = unknown(100)
    while (x > 0).any():
        x = unknown(100)
        turns += 1
    error = float("inf")
    while error > 1e-6:
        error = x.abs().mean().item()
        turns += 1
    while True:
        x = unknown(100)
        turns += 1
        if not (x > 0).any():
            break
    assert turns < 100
    assert [assumption.broken for assumption in dry.session.assumptions] == [1, 1, 1]
    assert gapless.report(dry.session).assumptions[0].broken == 1


def test_a_check_in_each_of_many_batches_is_not_turned_around(dry):
    for _ in range(40):
        assert torch.isfinite(unknown(100)).all()
        if (unknown(100).norm() > 1e6).item():
            raise ValueError("diverged")


def test_truncated_draws_of_torch_end(dry):
    weight = nn.init.trunc_normal_(torch.empty(300, 300, device=CUDA), std=0.02)
    assert weight.shape == (300, 300)


# -- the host ----------------------------------------------------------------------------------------------


def test_copies_to_the_host_have_finite_numbers(dry):
    chances = unknown(100, 10).softmax(-1).cpu().numpy()
    assert ((chances >= 0) & (chances <= 1)).all()
    assert set(unknown(50).gt(0).tolist()) == {True, False}
    ids = unknown(64, 500).argmax(-1).cpu()
    assert ((ids.numpy() >= 0) & (ids.numpy() < 500)).all()
    assert [assumption.kind for assumption in dry.session.assumptions] == ["values"] * 3


def test_numpy_of_what_is_too_large_is_said(dry):
    unknown(1 << 24).cpu().numpy()
    assert any("numpy of 64 MB without values" in note for note in dry.session.notes)


def test_what_comes_to_the_host_gets_values_where_somebody_looks(dry):
    on_host = unknown(1 << 20).cpu()
    records = current().core.values
    assert not records.record_of(on_host).filled
    assert float(on_host.mean()) == pytest.approx(0.0, abs=5)
    array = unknown(1 << 20).cpu().numpy()
    assert array.std() > 0
    assert len(unknown(1000).cpu().tolist()) == 1000


def test_a_model_made_on_the_host_takes_no_memory(dry):
    before = resident()
    model = nn.Sequential(*(nn.Linear(8192, 8192) for _ in range(6))).to(torch.bfloat16).to(CUDA)
    with torch.device("meta"):
        other = nn.Linear(30_000, 30_000)
    other = other.to_empty(device=CUDA)
    assert torch.cuda.memory_allocated() > 6 * 8192 * 8192 * 2 + 4 * 30_000**2
    assert sum(parameter.numel() for parameter in model.parameters()) == 6 * 8192 * 8193
    assert resident() - before < 500 << 20


def test_made_up_indices_without_bounds_harm_nobody(dry):
    chances = unknown(50, 4, 20).log_softmax(-1)
    labels, lengths = unknown(4, 30, dtype=torch.int64), unknown(4, dtype=torch.int64)
    loss = functional.ctc_loss(chances, labels, torch.full((4,), 50, device=CUDA), lengths, reduction="none")
    assert loss.shape == (4,)
    assert labels.cpu().tolist() == [[0] * 30] * 4


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_sparse_tensors_meet_what_has_no_values(dry):
    rows = torch.eye(8, device=CUDA).to_sparse_csr()
    assert (rows @ unknown(8, 5)).shape == (8, 5)


def test_operators_that_need_values_are_computed_or_named(dry):
    a, b = unknown(30, 20), unknown(30, 5)
    assert torch.linalg.lstsq(a, b).solution.shape == (20, 5)
    with pytest.raises(NotEmulated, match=r"aten::linalg_lstsq.*too large"):
        torch.linalg.lstsq(unknown(4000, 3000), unknown(4000, 5))


def test_fake_tensors_pass_untouched(dry):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.randn(4096, 4096, device=CUDA)
        assert type(fake @ fake).__name__ == "FakeTensor"


def test_nothing_is_left_behind_when_the_run_is_over():
    with contextlib.suppress(ValueError), gapless.emulate(dry=True):
        raise ValueError
    with gapless.emulate():
        assert torch.ones(200, 200, device=CUDA).mm(torch.ones(200, 200, device=CUDA))[0, 0].item() == 200


def _checked(x, kind):
    if kind == "raises" and (x < 0).any():
        raise ValueError
    if not (x >= 0).any():
        raise ValueError
    if any((part < 0).any() for part in x):
        raise ValueError
    if kind == "warns" and (x < 0).any():
        kind = "negative"
    assert not (x < 0).any()
    return kind


def test_checks_that_would_raise_hold_and_other_branches_are_decided_by_what_is_likelier(dry):
    x = unknown(300, 300)
    assert _checked(x, "raises") == "raises"
    assert _checked(x, "warns") == "negative"
    assert "_checked" in {assumption.line.function for assumption in dry.session.assumptions}


def test_a_mask_that_is_expanded_chooses_whole_rows(dry):
    rows = unknown(1000, 7) > 0
    values = unknown(1000, 7, 5)
    chosen = values[rows.unsqueeze(-1).expand(-1, -1, 5)]
    assert chosen.reshape(-1, 5).shape == values[rows].shape


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_reduced_loss_keeps_the_memory_of_all_of_it_as_with_values(dry, reduction):
    x = unknown(40, 50).requires_grad_()
    loss = torch.nn.functional.mse_loss(x, x.detach(), reduction=reduction)
    assert loss.untyped_storage().nbytes() == 4 * 40 * 50
    assert loss.shape == (() if reduction == "mean" else x.shape)


@pytest.mark.parametrize("kind", [torch.optim.SparseAdam, torch.optim.Adagrad, torch.optim.SGD])
def test_sparse_gradients_that_have_no_values(kind: type[torch.optim.Optimizer]) -> None:
    with gapless.emulate(dry=True) as emulation:
        layer = nn.Embedding(400_000, 256, sparse=True).cuda()
        optimizer = kind(layer.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            tokens = torch.randint(400_000, (40_000,)).cuda()
            layer(tokens).square().mean().backward()
            optimizer.step()
        gradient = layer.weight.grad
        assert gradient.is_sparse
        assert gradient.device.type == "cuda"
        left = gradient.coalesce()
        assert left._nnz() == tokens.unique().numel()
        assert left.is_coalesced()
        assert left.values().shape == (left._nnz(), 256)
        assert not emulation.session.assumptions
        assert math.isfinite(left.values().sum().item())
        assert emulation.session.assumptions


def test_small_sparse_tensors_keep_their_values() -> None:
    with gapless.emulate(dry=True) as emulation:
        layer = nn.Embedding(10, 8, sparse=True).cuda()
        layer(torch.tensor([1, 1, 3]).cuda()).sum().backward()
        assert layer.weight.grad.to_dense()[:, 0].tolist() == [0, 2, 0, 1, 0, 0, 0, 0, 0, 0]
    assert not emulation.session.assumptions


def test_memory_that_nothing_was_written_to_is_the_same_in_each_run(dry):
    for make in (torch.empty, torch.Tensor.new_empty, torch.empty_like):
        first = (8,) if make is torch.empty else (torch.ones(8, device=CUDA),)
        more = [(8,)] if make is torch.Tensor.new_empty else []
        kept = [make(*first, *more, **({"device": CUDA} if make is torch.empty else {})) for _ in range(20)]
        assert all(tensor.tolist() == [0.0] * 8 for tensor in kept)
        for tensor in kept:
            tensor.fill_(7.0)  # the next one may get its memory


def test_data_read_into_large_memory_is_data(dry, tmp_path):
    """`numpy()` of memory that nobody has written to is handed out to be written to."""
    with open(tmp_path / "data", "wb") as file:
        file.seek(1 << 25)
        file.write((12345).to_bytes(4, sys.byteorder))
        file.truncate(1 << 26)
    memory = torch.empty(1 << 24, dtype=torch.int32, pin_memory=True)
    with open(tmp_path / "data", "rb", buffering=0) as file:
        assert file.readinto(memory.numpy()) == 1 << 26
    assert int(memory[1 << 23]) == 12345
    assert not any("without values" in note for note in dry.session.notes)


def test_calls_unrecorded_without_values_keep_nothing_alive(dry):
    """What such a call said is remembered, and not the frames and tensors of who made it."""
    numbers = torch.randint(0, 500, (2, 3000), device="cuda")
    factor = torch.sparse_coo_tensor(numbers, torch.ones(3000, device="cuda"), (500, 500))
    weight = torch.randn(500, 64, device="cuda").requires_grad_()
    used = []
    for _ in range(4):
        torch.sparse.mm(factor, weight * 2).sum().backward()
        used.append(torch.cuda.memory_allocated())
    assert used[1:] == used[:1] * 3
