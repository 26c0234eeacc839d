"""Sizes that a script derives from values that are not there agree with each other, as those of values do."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

import gapless
from gapless.emulation.emulator import current
from tests.emulation.dry.memory import CUDA, unknown

EXPERTS, TOKENS, WIDTH = 12, 512, 48
pytestmark = pytest.mark.usefixtures("dry")


def routed(choices=2):
    """Tokens, the positions of their experts, and a mask of these."""
    tokens = unknown(TOKENS, WIDTH)
    scores = unknown(TOKENS, EXPERTS).softmax(-1)
    chosen = scores.topk(choices).indices
    return tokens, chosen, torch.zeros_like(scores, dtype=torch.bool).scatter(1, chosen, True)


def permuted(choices=2):
    """Tokens in the order of their experts, and the experts."""
    tokens, chosen, _ = routed(choices)
    flat = chosen.view(-1)
    order = flat.argsort(stable=True)
    return tokens[order // choices], flat, order


@pytest.mark.parametrize("first", ["counts", "selection"])
def test_tokens_selected_by_a_mask_are_split_by_its_sums(first):
    tokens, _, mask = routed()
    numbers = torch.arange(TOKENS, device=CUDA).unsqueeze(0).expand(EXPERTS, -1)
    counts = mask.sum(0)
    if first == "counts":
        counts = counts.tolist()
    rows = numbers.masked_select(mask.T)
    if first == "selection":
        counts = counts.tolist()
    parts = torch.split(tokens.index_select(0, rows), counts)
    assert len(parts) == EXPERTS
    assert sum(map(len, parts)) == 2 * TOKENS  # each token has two experts
    assert rows.max().item() < TOKENS


def test_positions_of_a_mask_are_counted_as_its_sums():
    tokens, _, mask = routed()
    rows, experts = mask.T.nonzero(as_tuple=True)[::-1]
    counts = experts.bincount(minlength=EXPERTS)
    assert counts.tolist() == mask.sum(0).tolist()
    assert len(torch.split(tokens[rows], counts.tolist())) == EXPERTS


@pytest.mark.parametrize("how", ["bincount", "histc", "one_hot", "eq", "unique", "scatter_add", "float"])
def test_counts_of_experts_add_up_to_the_tokens(how):
    tokens, flat, _ = permuted()
    if how == "bincount":
        counts = flat.bincount(minlength=EXPERTS)
    elif how == "histc":
        counts = torch.histc(flat.float(), bins=EXPERTS, min=0, max=EXPERTS - 1).long()
    elif how == "one_hot":
        counts = functional.one_hot(flat, EXPERTS).sum(0)
    elif how == "eq":
        counts = torch.stack([(flat == expert).sum() for expert in range(EXPERTS)])
    elif how == "unique":
        counts = flat.unique(return_counts=True)[1]
    elif how == "scatter_add":
        counts = torch.zeros(EXPERTS, dtype=torch.long, device=CUDA).scatter_add(
            0, flat, torch.ones_like(flat)
        )
    else:
        counts = functional.one_hot(flat, EXPERTS).float().mean(0).mul(len(flat)).round().long()
    assert sum(map(len, torch.split(tokens, counts.tolist()))) == 2 * TOKENS
    assert len(torch.repeat_interleave(counts)) == 2 * TOKENS
    assert len(torch.repeat_interleave(torch.arange(len(counts), device=CUDA), counts)) == 2 * TOKENS


def test_offsets_slice_all_tokens():
    tokens, flat, _ = permuted()
    counts = flat.bincount(minlength=EXPERTS)
    ends = counts.cumsum(0)
    begins = [0, *ends.tolist()]
    assert [len(tokens[a:b]) for a, b in itertools.pairwise(begins)] == counts.tolist()
    assert begins[-1] == len(tokens)
    parts = torch.tensor_split(tokens, ends[:-1].cpu())
    assert [len(part) for part in parts] == counts.tolist()


def test_groups_of_a_grouped_product_end_at_the_rows():
    tokens, flat, _ = permuted()
    ends = flat.bincount(minlength=EXPERTS).cumsum(0).to(torch.int32)
    weight = unknown(EXPERTS, WIDTH, 64, dtype=torch.bfloat16)
    out = torch._grouped_mm(tokens.bfloat16(), weight, offs=ends)
    assert out.shape == (2 * TOKENS, 64)
    assert ends[-1].item() == len(tokens)


def test_each_expert_gets_as_many_tokens_as_were_counted():
    tokens, chosen, _ = routed(1)
    flat, out, total = chosen.view(-1), torch.zeros_like(tokens), 0
    for expert in range(EXPERTS):
        count = (flat == expert).sum().item()
        mine = tokens[flat == expert]
        assert mine.view(count, WIDTH).shape == mine.shape
        assert len(torch.where(flat == expert)[0]) == count
        out[flat == expert] = mine * 2
        total += count
    assert total == TOKENS


def test_permutations_are_undone():
    tokens, _, order = permuted()
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=CUDA)
    assert sorted(order.tolist()) == list(range(2 * TOKENS))
    assert order[back].tolist() == list(range(2 * TOKENS))
    assert tokens[back].view(TOKENS, 2, WIDTH).sum(1).shape == (TOKENS, WIDTH)


def test_selected_elements_fit_the_memory_made_for_them():
    x = unknown(TOKENS, WIDTH)
    rows, elements = x.mean(1) > 0, x > 0.5
    count = rows.sum().item()
    assert x[rows].view(count, -1).shape == (count, WIDTH)
    memory = torch.empty(int(elements.sum()), device=CUDA)
    memory[:] = x[elements]
    memory.copy_(x.masked_select(elements))
    counts = {
        len(memory), elements.count_nonzero().item(), int(elements.float().sum().item()),
        elements.sum(1).sum().item(), len(elements.nonzero()), int(elements.cpu().numpy().sum()),
    }  # fmt: skip
    assert len(counts) == 1


def test_lengths_add_up_to_packed_rows():
    x = unknown(16, 64, WIDTH)
    mask = x.mean(-1) > 0
    lengths = mask.sum(1)
    packed = x[mask]
    assert len(packed) == lengths.sum().item()
    padded = nn.utils.rnn.pad_sequence(packed.split(lengths.tolist()), batch_first=True)
    assert padded.shape[1] == lengths.max().item()
    layer = nn.LSTM(WIDTH, 8, batch_first=True).to(CUDA)
    rows = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
    out, lengths_seen = nn.utils.rnn.pad_packed_sequence(layer(rows)[0], batch_first=True)
    assert out.shape[1] == lengths.max().item()
    assert lengths_seen.tolist() == lengths.tolist()


def test_nested_tensors_are_as_long_as_their_parts():
    x = unknown(16, 64, WIDTH)
    lengths = (x.mean(-1) > 0).sum(1)
    nested = torch.nested.nested_tensor(
        [x[n, :length] for n, length in enumerate(lengths.tolist())], layout=torch.jagged
    )
    assert nested.values().shape[0] == lengths.sum().item()


def test_tokens_beyond_the_capacity_are_dropped():
    tokens, flat, _ = permuted()
    hot = functional.one_hot(flat, EXPERTS)
    place = hot.cumsum(0) * hot - 1
    capacity = TOKENS // EXPERTS
    kept = (place >= 0) & (place < capacity)
    count = kept.sum().item()
    rows, experts = kept.nonzero(as_tuple=True)
    assert len(rows) == count
    assert kept.sum(0).max().item() <= capacity
    slots = torch.zeros(EXPERTS, capacity, WIDTH, device=CUDA)
    slots[experts, place[rows, experts]] = tokens[rows]


def test_a_mask_that_is_too_large_to_be_settled_at_once_is_when_something_is_selected_by_it():
    mask = unknown(1 << 12, 1 << 11) > 1
    assert not current().core.values.record_of(mask).filled
    count = len(mask.nonzero())
    assert count == pytest.approx(0.159 * mask.numel(), rel=0.01)
    assert mask.sum().item() == count == mask.sum(1).sum().item()
    assert len(unknown(1 << 12, 1 << 11)[mask]) == count


def test_only_so_much_is_settled_in_a_step():
    settled = [current().core.values.record_of(unknown(1 << 22) > 0).filled for _ in range(40)]
    assert settled[0]
    assert not settled[-1]
    gapless.step()
    assert current().core.values.record_of(unknown(1 << 22) > 0).filled


def test_masks_of_one_tensor_do_not_overlap_where_its_values_cannot():
    x = unknown(TOKENS, WIDTH).sigmoid()
    above, below, rest = x > 0.6, x < 0.4, (x >= 0.4) & (x <= 0.6)
    assert not (above & below).sum().item()
    assert above.sum().item() + below.sum().item() + rest.sum().item() == x.numel()


def test_a_size_and_what_it_is_of_are_from_the_same_call(dry):
    for count in (512, 300, 20):
        x = unknown(count)
        x[x > 0.5].sum()
    (size,) = dry.session.assumptions
    assert 0 < size.low <= size.value <= size.high
    assert (size.of, size.of_low, size.of_high) == (512, 20, 512)
    assert size.value <= size.of
    (answer,) = (
        row.cells[0] for table in gapless.report(dry.session).tables for row in table.rows if "of" in str(row)
    )
    assert answer == f"{size.low:g}–{size.high:g} of 20–512 elements"
