"""Padding seen in batches, what it could be, and how few bytes a batch needs: against plain reckonings."""

from __future__ import annotations

import itertools

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence

from gapless.loading.columns import measure_columns
from gapless.loading.padded import PaddingMeter, best_edges

LENGTHS = [3, 40, 7, 9, 60, 5, 11, 8]


def draws(count: int = 6) -> list[list[int]]:
    generator = numpy.random.default_rng(0)
    return [[int(index) for index in generator.permutation(LENGTHS)] for _ in range(count)]


def looked(batches) -> PaddingMeter:
    meter = PaddingMeter()
    for items, batch in batches:
        meter.look(items, batch)
    return meter


def sequences(lengths: list[int], *more: int) -> list[torch.Tensor]:
    return [torch.arange(1, length * max(1, *more, 1) + 1).reshape(length, *more) for length in lengths]


@pytest.mark.parametrize("kind", ["tensors", "dicts", "tuples", "lists", "frames"])
@pytest.mark.parametrize("left", [False, True])
def test_padding_by_collating_is_detected_from_the_items(kind, left):
    batches = []
    for lengths in draws():
        plain = sequences(lengths, 2) if kind == "frames" else sequences(lengths)
        side = "left" if left else "right"
        batch = pad_sequence(plain, batch_first=True, padding_side=side).float()
        items = {
            "tensors": plain,
            "frames": plain,
            "dicts": [{"y": 1, "x": item} for item in plain],
            "tuples": [(item, 0) for item in plain],
            "lists": [{"x": item.tolist()} for item in plain] if kind == "lists" else None,
        }[kind]
        batches.append((items, {"y": torch.ones(8), "x": batch}))
    padding = looked(batches).padding
    assert padding.share == pytest.approx(1 - sum(LENGTHS) / (8 * 60))
    assert (padding.field, padding.size, padding.batch, padding.inside) == ("x", 60, 8, False)
    assert sorted(padding.lengths) == sorted(LENGTHS * 6)


def test_the_part_of_a_batch_that_is_padded():
    """Boxes are next to nothing beside images; masks of whichever shape are as long as the text."""
    ids = [pad_sequence(sequences(lengths), batch_first=True) for lengths in draws()]
    images = [(table, torch.zeros(8, 3, 128, 128)) for table in ids]
    text = [(table, table > 0, torch.zeros(8, 1, table.shape[1], table.shape[1])) for table in ids]
    few, most = (
        looked((sequences(lengths), batch) for lengths, batch in zip(draws(), batches, strict=True)).padding
        for batches in (images, text)
    )
    assert few.part == pytest.approx(60 / (60 + 3 * 128 * 128))
    assert few.saved < 0.01
    assert (most.part, most.saved) == (1.0, 1 - most.left)


@pytest.mark.parametrize("mask", ["mask", "inverted", "none", "pad-first"])
def test_padding_within_items_is_detected_from_a_mask_or_a_unique_value(mask):
    batches = []
    for lengths in draws():
        ids = torch.full((8, 64), 2)
        kept = torch.zeros(8, 64, dtype=torch.bool)
        for row, length in enumerate(lengths):
            place = slice(64 - length, 64) if mask == "pad-first" else slice(0, length)
            ids[row, place] = torch.arange(5, 5 + length)
            kept[row, place] = True
        batch = {"ids": ids, "label": torch.ones(8)}
        if mask in ("mask", "inverted"):
            batch["mask"] = kept.long() if mask == "mask" else ~kept
        batches.append((None, batch))
    padding = looked(batches).padding
    assert padding.inside
    assert padding.share == pytest.approx(1 - sum(LENGTHS) / (8 * 64))


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(8, 64),  # numbers, not tokens
        torch.rand(8, 64),
        torch.randint(0, 2, (8, 64)),  # flags
        torch.randint(0, 256, (8, 3, 16, 16)),
        {"image": torch.rand(8, 3, 16, 16), "label": torch.arange(8)},
        torch.arange(8 * 64).reshape(8, 64),
        "text",
    ],
)
def test_nothing_is_said_of_what_is_no_padding(batch):
    padding = looked([(None, batch)] * 4).padding
    assert padding is None or padding.share == 0


def test_what_other_ways_would_leave():
    batches = [(items, pad_sequence(items, batch_first=True)) for items in map(sequences, draws(40))]
    padding = looked(batches).padding
    up = [-(-length // 8) * 8 for length in LENGTHS]
    assert padding.dynamic == pytest.approx(1 - sum(LENGTHS) / (8 * 64))
    # Eight lengths, each 40 times: sorted, nearly every batch has items of one length.
    assert padding.sorted == pytest.approx(1 - sum(LENGTHS) / sum(up), abs=0.03)
    assert padding.edges == (8, 16, 40, 64)
    assert padding.fixed == pytest.approx(1 - sum(LENGTHS) / sum(up), abs=1e-9)
    assert padding.left == pytest.approx((1 - padding.share) / (1 - padding.sorted))


@given(st.lists(st.integers(1, 70), min_size=1, max_size=30), st.integers(1, 3))
def test_edges_are_the_best_of_all(lengths, most):
    sizes = sorted({-(-length // 8) * 8 for length in lengths})

    def places(edges):
        return sum(min(edge for edge in edges if edge >= length) for length in lengths)

    every = (
        chosen
        for count in range(1, most + 1)
        for chosen in itertools.combinations(sizes, count)
        if chosen[-1] == sizes[-1]
    )
    best = best_edges(lengths, most)
    assert len(best) <= most
    assert places(best) == min(map(places, every))


PIXELS = torch.randint(0, 256, (4, 3, 64, 64), generator=torch.Generator().manual_seed(0)).float()
TOKENS = torch.arange(4 * 512).reshape(4, 512)


@pytest.mark.parametrize(
    ("tensor", "to"),
    [
        (PIXELS / 255, "uint8"),
        ((PIXELS / 255 - 0.45) / 0.225, "uint8"),
        ((PIXELS.movedim(1, -1) / 255).double(), "uint8"),
        (PIXELS / 255 + torch.rand(4, 3, 64, 64), ""),  # noise was added: no bytes any more
        (torch.rand(4, 3, 64, 64), ""),
        (torch.rand(64, 32, dtype=torch.float64), "float32"),
        (TOKENS, "int32"),
        (TOKENS % 2, "bool"),
        (TOKENS << 40, ""),
        (torch.arange(4096), ""),  # labels: losses ask for whole numbers of 64 bits
        (TOKENS.int(), ""),
        (torch.rand(64, 64).half(), ""),
    ],
)
def test_the_smallest_type_that_holds_the_values(tensor, to):
    (column,) = measure_columns({"x": tensor})
    assert (column.name, column.to) == ("x", to)
    assert column.bytes == tensor.numel() * tensor.element_size()
    width = {"uint8": 1, "bool": 1, "float32": 4, "int32": 4, "": tensor.element_size()}[to]
    assert column.least == tensor.numel() * width
