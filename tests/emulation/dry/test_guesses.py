"""Guesses beside real values: bounds hold for every element, means are near, decisions are the same."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import gapless
from gapless.emulation.dry import guesses
from gapless.emulation.dry.filling import Filler
from gapless.emulation.dry.guesses.guess import (
    Guess,
    anything,
    below,
    between,
    chance,
    constant,
    convert,
    mix,
)
from gapless.emulation.dry.guesses.rules import OperatorResult, base_name
from gapless.emulation.emulator import current
from tests.emulation.dry.memory import CUDA, unknown

ROWS, WIDTH = 64, 50

NUMBERS = {
    "abs": torch.abs,
    "add": lambda x: x + 3,
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(-1),
    "clamp": lambda x: x.clamp(-0.5, 2.0),
    "cross entropy": lambda x: functional.cross_entropy(
        x, torch.zeros(ROWS, dtype=torch.long, device=x.device)
    ),
    "cos": torch.cos,
    "difference": lambda x: x - x.flip(0),
    "divide": lambda x: x / 4,
    "dropout": lambda x: functional.dropout(1 + x.abs(), 0.3),
    "dropout's backward": lambda x: torch.ops.aten.native_dropout_backward(
        1 + x.abs(), torch.native_dropout(x, 0.3, True)[1], 1 / 0.7
    ),
    "exp": torch.exp,
    "gelu": functional.gelu,
    "layer norm": lambda x: functional.layer_norm(5 * x + 1, (WIDTH,)),
    "log of squares": lambda x: torch.log1p(x.square()),
    "log softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "mean": lambda x: x.mean(-1),
    "mean squared error": lambda x: functional.mse_loss(x, x.flip(0)),
    "negate": torch.neg,
    "norm": lambda x: x.norm(),
    "relu": torch.relu,
    "repeat": lambda x: x.repeat(2, 2),
    "rsub": lambda x: 1 - x,
    "sigmoid": torch.sigmoid,
    "smooth l1": lambda x: functional.smooth_l1_loss(x, x.flip(0)),
    "softmax": lambda x: x.softmax(-1),
    "square": torch.square,
    "square of itself": lambda x: x * x,
    "std": lambda x: x.std(-1),
    "sum": lambda x: x.sum(-1),
    "tanh": torch.tanh,
    "topk": lambda x: x.topk(5).values,
    "variance": lambda x: x.var(),
    "where": lambda x: torch.where(x > 1, torch.full_like(x, 10.0), x),
    "with logits": lambda x: functional.binary_cross_entropy_with_logits(x, torch.ones_like(x)),
}
WHOLE = {
    "argmax": lambda x: x.argmax(-1),
    "argsort": lambda x: x.argsort(-1),
    "sort": lambda x: x.sort(-1).indices,
    "topk": lambda x: x.topk(5).indices,
    "nonzero": lambda x: (x > 0).nonzero(),
    "count": lambda x: (x > 1).sum(),
    "max": lambda x: x.max(-1).indices,
}
DECISIONS = {
    "all are finite": (lambda x: torch.isfinite(x).all(), True),
    "some is nan": (lambda x: torch.isnan(x).any(), False),
    "some is infinite": (lambda x: torch.isinf(x).any(), False),
    "a number is one": (lambda x: (x == 1.0).any(), False),
    "all are large": (lambda x: x.min() > 100, False),
    "a norm is not negative": (lambda x: x.norm() >= 0, True),
    "chances sum up": (lambda x: ((x.softmax(-1).sum(-1) - 1).abs() < 1e-4).all(), True),
    "a chance is above one": (lambda x: (x.softmax(-1) > 1).any(), False),
    "many are above": (lambda x: (x > 0).sum() > 10, True),
    "neither": (lambda x: ~((x > 9) | (x < -9)).any(), True),
    "one is not itself": (lambda x: (x != x).any(), False),
    "an index is valid": (lambda x: (x.argmax(-1) < WIDTH).all(), True),
    "equal to a copy": (lambda x: torch.equal(x, x), True),
    "mean of a mask": (lambda x: (x > 0).float().mean() < 0.9, True),
    **{
        f"whether {name} failed": (lambda x, of=name: getattr(torch.linalg, of)(x.mT @ x).info.any(), False)
        for name in ("cholesky_ex", "inv_ex", "ldl_factor_ex", "lu_factor_ex")
    },
    "whether solve_ex failed": (lambda x: torch.linalg.solve_ex(x.mT @ x, x.mT).info.any(), False),
}


def drawn(device):
    torch.manual_seed(3)
    return torch.randn(ROWS, WIDTH).to(device)


def nothing():
    x = drawn("cuda")
    current().core.values.mark(x, Guess())
    return x


@pytest.fixture(scope="module", autouse=True)
def dry():
    with gapless.emulate(dry=True) as emulation:
        yield emulation


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_lie_within_bounds_and_near_their_means(name):
    real = NUMBERS[name](drawn("cpu")).double()
    guess = current().core.values.record_of(NUMBERS[name](nothing()))
    assert guess.low <= real.min() + 1e-6
    assert real.max() - 1e-6 <= guess.high
    near = 0.35 * max(1.0, abs(real.mean().item())) + guess.spread
    assert guess.mean == pytest.approx(real.mean().item(), abs=near)
    assert guess.maker


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_are_valid(name):
    real, guessed = WHOLE[name](drawn("cpu")), WHOLE[name](nothing())
    guess = current().core.values.record_of(guessed)
    assert guessed.dtype == real.dtype
    assert guess.low <= real.min()
    assert real.max() <= guess.high
    assert guess.low >= 0


COUNTS = {
    "bincount": lambda e: torch.bincount(e, minlength=WIDTH),
    "histc": lambda e: torch.histc(e.float(), bins=WIDTH, min=0, max=WIDTH),
    "in groups": lambda e: torch.bincount(e, minlength=WIDTH).view(5, -1).sum(1),
    "as other numbers": lambda e: torch.bincount(e, minlength=WIDTH).int().clone(),
    "copied": lambda e: torch.empty(WIDTH, dtype=torch.long, device="cuda").copy_(
        torch.bincount(e, minlength=WIDTH)
    ),
    "in one": lambda e: torch.bincount(e, minlength=WIDTH).sum(),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_add_up_to_what_was_counted(name):
    counts = COUNTS[name](nothing().argmax(-1))
    assert sum(counts.flatten().tolist()) == ROWS


def test_a_part_of_counts_and_weighted_ones_add_up_to_no_known_number():
    which = nothing().argmax(-1)
    counts = torch.bincount(which, minlength=WIDTH)
    record_of = current().core.values.record_of
    assert record_of(counts[:3].clone()).total is None
    assert record_of(counts[:3].sum()).total is None
    assert record_of(counts * 2).total is None
    assert record_of(torch.bincount(which, torch.rand(ROWS, device="cuda"))).total is None


@pytest.mark.parametrize("name", DECISIONS)
def test_decisions_are_those_of_real_values(name):
    decide, expected = DECISIONS[name]
    assert bool(decide(drawn("cpu"))) is expected
    assert bool(decide(nothing())) is expected


def test_a_rule_that_fails_or_gives_nonsense_leaves_what_is_true_of_the_type(monkeypatch):
    def result_of(dtype):
        return guesses.guess_result(
            OperatorResult("square", (None,), dtype, 0, 1.0, lambda _: None, lambda *_: False)
        )

    for wrong in (lambda record: 1 / 0, lambda record: Guess(math.nan), lambda record: Guess(math.inf)):
        monkeypatch.setitem(guesses.RULES, "square", wrong)
        assert result_of(torch.float32) is anything("square", torch.float32)
    monkeypatch.setitem(guesses.RULES, "square", lambda record: Guess(7.0))
    assert result_of(torch.bool) is anything("square", torch.bool)


def test_chances_follow_from_means_spreads_and_bounds():
    assert below(Guess(), constant(0.0)) == 0.5
    assert below(Guess(), constant(1.0)) == pytest.approx(0.8413, abs=1e-4)
    assert below(between(0, 9), constant(10.0)) == 1.0
    assert below(between(5, 9), constant(5.0)) == 0.0
    assert mix(constant(2.0), constant(2.0), 0.3).exact
    half = mix(constant(0.0), constant(1.0), 0.5)
    assert (half.mean, half.spread, half.low, half.high) == (0.5, 0.5, 0.0, 1.0)
    assert convert(between(3, 9), torch.bool).mean == 1.0
    assert convert(constant(0.0), torch.bool, exact=True).mean == 0.0
    assert chance(1.2).mean == 1.0


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("aten::add_", "add"),
        ("aten::_foreach_add_", "add"),
        ("aten::__and__", "__and__"),
        ("aten::norm", "norm"),
    ],
)
def test_an_operators_forms_have_one_name(name, base):
    assert base_name(name) == base


@pytest.mark.parametrize(("low", "high"), [(0, 96), (0, 9), (-3, 60)])
def test_many_whole_numbers_are_drawn_within_their_ends(low, high):
    numbers = torch.empty(20_000, dtype=torch.long)
    assert Filler().fill(numbers, between(low, high))
    counts = numbers.sub(low).bincount(minlength=high - low + 1)
    assert counts[0] == counts[-1] == 0
    assert counts[1:-1].min() > 0
    assert counts.max() < 3 * len(numbers) / (high - low + 1)


def test_few_whole_numbers_are_drawn_with_their_ends():
    numbers = torch.empty(1_000, dtype=torch.long)
    assert Filler().fill(numbers, between(0, 2))
    assert numbers.unique().tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("least", "loss", "most"),
    [
        (0.1, lambda a, b: (a * 5 - b * 5).exp().mean(), 100.0),
        (0.1, lambda a, b: ((a * 3 - b).exp() * b).abs().mean(), 100.0),
        (0.0, lambda a, b: (a.pow(2) + (4 * b).exp() - 4 * b - 1).mean() / 2, 100.0),
        (10.0, lambda a, b: (a * 10).logsumexp(-1).mean(), 60.0),
        (0.5, lambda a, b: functional.mse_loss(functional.layer_norm(a * 50, (300,)), b), 5.0),
        (0.0, lambda a, b: functional.gaussian_nll_loss(a, b, (2 * b).exp()), 100.0),
    ],
)
def test_losses_are_as_large_as_those_of_training(dry, least, loss, most):
    assert least <= loss(unknown(300, 300), unknown(300, 300)).item() <= most


def test_a_scalar_that_requires_gradients_is_read_without_a_warning(dry, recwarn):
    scale = nn.Parameter(torch.tensor(0.01, device=CUDA))
    loss = (unknown(300, 300) * scale.float() + scale).mean()
    loss.backward()
    torch.optim.SGD([scale]).step()
    assert not recwarn.list
