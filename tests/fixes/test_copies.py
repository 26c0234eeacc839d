"""Copies to the GPU that need not wait, and the loaders that pin what is copied."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixes.rewriting import HEAD, rewrite

DATA = HEAD + (
    "from torch.utils.data import DataLoader as Feed, TensorDataset\n"
    "data = TensorDataset(torch.randn(16, 4), torch.randn(16, 1))\n"
)
LOOP = "for x, y in feed:\n    x, y = x.to('cuda'), y.cuda(0)\n    print(f'{train():.9f}')\n"
LOADERS = {
    "feed = Feed(data, batch_size=4)\n": "Feed(data, batch_size=4, pin_memory=True)",
    "feed = Feed(\n    data,  # (the)\n    batch_size=(4),  # :)\n)\n": "batch_size=(4), pin_memory=True,  #",
    "feed = Feed(data, 4, pin_memory=False)\n": "4, pin_memory=True)",
    "options = {'batch_size': 4, 'pin_memory': False}\nfeed = Feed(data, **options)\n": "'pin_memory': True}",
    "options = dict(batch_size=4)\nfeed = Feed(data, **options)\n": "**options, pin_memory=True)",
}


@pytest.mark.parametrize("loader", LOADERS)
def test_a_loader_pins_its_batches(loader: str, tmp_path: Path) -> None:
    rewriting = rewrite(tmp_path, loader + LOOP, DATA)
    assert "DataLoader" not in " ".join(rewriting.refusals)
    assert LOADERS[loader] in rewriting.text
    assert "x.to('cuda', non_blocking=True), y.cuda(0, non_blocking=True)" in rewriting.text
    assert rewriting.after.printed == rewriting.before.printed
    assert rewriting.waits[0] - rewriting.waits[1] == 8
    assert not rewriting.after.session.races


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        ("pin = False\nfeed = Feed(data, 4, pin_memory=pin)\n", "`pin_memory` of the DataLoader at line 15"),
        ("o = {}\no['pin_memory'] = False\nfeed = Feed(data, 4, **o)\n", "put together elsewhere"),
        ("options = {'pin_memory': bool(0)}\nfeed = Feed(data, 4, **options)\n", "is a variable"),
    ],
)
def test_a_loader_whose_options_are_elsewhere_is_left(loader: str, reason: str, tmp_path: Path) -> None:
    rewriting = rewrite(tmp_path, loader + LOOP, DATA)
    assert reason in " ".join(rewriting.refusals)
    assert "pin_memory=True" not in rewriting.text
    assert rewriting.after.printed == rewriting.before.printed


def test_a_copy_whose_options_are_elsewhere_is_left(tmp_path: Path) -> None:
    text = (
        "feed = Feed(data, 4)\no = {'non_blocking': False}\n"
        "for x, y in feed:\n    x = x.to('cuda', **o)\n    train()\n"
    )
    rewriting = rewrite(tmp_path, text, DATA)
    assert "its options are a variable" in " ".join(rewriting.refusals)
    assert rewriting.text == DATA + text


def test_what_is_small_is_copied_by_the_call(tmp_path: Path) -> None:
    text = "for i in range(5):\n    y = torch.tensor([i, 1.0]).to('cuda')\n    train()\nprint(y.tolist())\n"
    rewriting = rewrite(tmp_path, text)
    assert ".to('cuda', non_blocking=True)" in rewriting.text
    assert rewriting.after.printed == rewriting.before.printed
    assert rewriting.waits[0] - rewriting.waits[1] == 5


def test_a_batch_that_is_changed_behind_its_copy_is_left(tmp_path: Path) -> None:
    text = (
        "feed = Feed(data, 4)\nfor i, (part, y) in enumerate(feed):\n    part *= 2\n    z = part.to('cuda')\n"
        "    train()\n    if i > 9: part.zero_()\n"
    )
    rewriting = rewrite(tmp_path, text, DATA)
    assert "changed in place behind the copy" in " ".join(rewriting.refusals)
    assert "non_blocking" not in rewriting.text
    again = rewrite(tmp_path, text.replace("    if i > 9: part.zero_()\n", ""), DATA)
    assert "part.to('cuda', non_blocking=True)" in again.text


def test_a_copy_that_also_goes_to_the_cpu_is_left(tmp_path: Path) -> None:
    text = (
        "def move(t, d):\n    return t.to(d)\nfor i in range(5):\n    y = move(torch.ones(3), 'cuda')\n"
        "    train()\nprint(move(y, 'cpu'))\n"
    )
    rewriting = rewrite(tmp_path, text)
    assert "it also copies to the CPU, which must wait for its values" in rewriting.refusals
    assert "non_blocking" not in rewriting.text
