"""What a clock decides is masked in printed lines, what the training decides is not."""

from __future__ import annotations

import pytest

from gapless.fixes.proof.printed_text import first_difference, mask, split_lines

CLOCKS = (
    "epoch 3 loss 0.1234 ({} s, 12.5 it/s)",
    "epoch 3: {}ms/step",
    "Time: 0m {}s loss 3",
    "elapsed=0:00:{} acc 0.5",
    "{{'train_runtime': {}, 'train_loss': 0.51}}",
    "train_samples_per_second: {}",
    "| ms/batch {} | loss 5.10 |",
    "throughput: {} tokens/sec",
    "epoch time {}, loss 0.1",
    "2026-11-28 07:38:25,{} INFO loss 3.2",
    "took 5 min {} s",
    "{0} seconds, eta {0} s",
    "{0} min/epoch at {0} tokens/min",
)
NUMBERS = (
    "loss {}",
    "timestep {} of 1000",
    "beta {} theta: 3",
    "Train Epoch: 1 [{}/60000 (1%)]",
    "lr 1e-3 acc {} %",
    "step {}: 5 samples, 3 seeds",
    "speed {} reward 3",
    "runtime 3.2 s, loss {}",
    "100%|####| 20/20 [00:03<00:00, 6.52it/s, loss={}]",
    "took {} steps",
    "{} heads, 3 layers",
    "mean {} min 0.1 max 0.9",
    "mean: {} min: 0.1",
    "reward/min {}",
    "train/loss {} train/min 0.1",
    "eta: {}",
    "saved /tmp/runs/best_{}.pt",
)


@pytest.mark.parametrize("line", CLOCKS)
def test_times_and_rates_are_masked(line: str) -> None:
    assert mask(line.format("12")) == mask(line.format("34"))


@pytest.mark.parametrize("line", NUMBERS)
def test_numbers_of_the_training_are_not(line: str) -> None:
    assert mask(line.format("12")) != mask(line.format("13"))
    assert mask(line.format("0.125")) != mask(line.format("0.126"))


def test_addresses_and_paths_are_masked() -> None:
    assert mask("<Net at 0x7f00aa1122> in /tmp/a1/ckpt.pt") == mask(
        "<Net at 0x7f00bb1122> in /tmp/b2/ckpt.pt"
    )


def test_overwritten_states_and_warnings_do_not_count() -> None:
    text = b"  5%|# | 1/20\r100%|##| 20/20\na.py:3: UserWarning: slow\n 35%|### | 7/20\nWarning: loss 3\n"
    lines, warnings = split_lines(text)
    assert [line.text for line in lines] == ["100%|##| 20/20", "Warning: loss 3"]
    assert warnings == ["a.py:<line>: UserWarning: slow"]


def test_the_first_difference_names_the_line() -> None:
    before, _ = split_lines(b"a\nloss 1.00\nc\n")
    for text, rest in (
        (b"a\nc\n", "line 2 of it is not printed: 'loss 1.00'"),
        (b"a\nb\nloss 1.00\nc\n", "line 2 of it is new: 'b'"),
        (b"a\nloss 1.01\nc\n", "line 2 of it is 'loss 1.01' instead of 'loss 1.00'"),
        (b"a\nloss 1.00\nc\nd\n", "line 4 of it is new: 'd'"),
    ):
        difference = first_difference(before, split_lines(text)[0])
        assert difference is not None
        assert difference.describe("it") == rest


def test_rounding_allows_the_last_digit_and_no_more() -> None:
    before, _ = split_lines(b"loss 1.000 of 12\n")
    assert first_difference(before, split_lines(b"loss 1.001 of 12\n")[0], 1e-6) is None
    assert first_difference(before, split_lines(b"loss 1.002 of 12\n")[0], 1e-6) is not None
    assert first_difference(before, split_lines(b"loss 1.000 of 13\n")[0], 1e-6) is not None
    assert first_difference(before, split_lines(b"loss 1.000 in 12\n")[0], 1e-6) is not None
