"""``gapless check`` with stand-ins: the built-in ones, the user's own, and none."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
    import torch
    from torch.utils.cpp_extension import load_inline
    from apex.optimizers import FusedSGD

    ext = load_inline(name="fast", cpp_sources="", cuda_sources="__global__ void f() {}", functions=["twice"])
    weight = torch.ones(3, device="cuda", requires_grad=True)
    optimizer = FusedSGD([weight], lr=0.1)
    for _ in range(6):
        ext.twice(weight).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(weight.tolist())
"""
OWN = """
    import gapless

    @gapless.standin("fast.twice", waits=1)
    def twice(x):
        return 2 * x * float(x.sum() * 0 + 1)
"""


def check(python: Callable[..., Any], *words: str) -> Any:
    return python("-m", "gapless", "check", "-q", "-f", "json", "--steps", "all", "--no-loader", *words)


def test_a_users_own_function_takes_the_place_of_a_kernel(
    python: Callable[..., Any], write: Callable[[str, str], Path]
) -> None:
    write("train.py", textwrap.dedent(SCRIPT))
    write("own.py", textwrap.dedent(OWN))
    done = check(python, "--standin", "own.py", "train.py")
    assert done.returncode == 0, done.stderr
    printed, *_, report = done.stdout.strip().splitlines()
    assert json.loads(printed) == pytest.approx([1 - 6 * 0.1 * 2] * 3)
    data = json.loads(report)
    assert data["steps"]["waits_per_step"] == 1
    assert data["unknown"] == []
    assert any("apex is not installed here" in note for note in data["notes"])


def test_without_it_the_call_is_refused_in_one_line(
    python: Callable[..., Any], write: Callable[[str, str], Path]
) -> None:
    write("train.py", textwrap.dedent(SCRIPT))
    done = check(python, "train.py")
    assert done.returncode == 3
    ending = json.loads(done.stdout.strip().splitlines()[-1])["ending"]
    assert ending["how"] == "not-emulated"
    assert "`fast.twice` of a CUDA extension" in ending["message"]
    assert '@gapless.standin("fast.twice")' in ending["message"]


def test_switched_off_and_missing(python: Callable[..., Any], write: Callable[[str, str], Path]) -> None:
    write("train.py", textwrap.dedent(SCRIPT))
    done = check(python, "--no-standins", "train.py")
    assert "No module named 'apex'" in done.stderr
    done = check(python, "--standin", "gone.py", "train.py")
    assert done.returncode == 2
    assert "gone.py: there is no such file" in done.stderr
    write("bad.py", "1 / 0\n")
    done = check(python, "--standin", "bad.py", "train.py")
    assert done.returncode == 2
    assert "bad.py failed: ZeroDivisionError" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_module_that_only_defines_functions_is_said_to_run_nothing(
    python: Callable[..., Any], write: Callable[[str, str], Path]
) -> None:
    write("parts.py", "def train():\n    pass\n")
    done = check(python, "-m", "parts")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout.strip().splitlines()[-1])
    assert data["verdict"] == "parts ran nothing on the GPU: it only defines `train`, and calls nothing"
    assert "__main__" in data["why"][0]


LIBRARY = """
    import torch

    try:
        from apex.multi_tensor_apply import multi_tensor_applier
    except ImportError:
        def multi_tensor_applier(tensors):
            return sum(float(one.norm()) for one in tensors)

    def clip(tensors):
        return multi_tensor_applier(tensors)
"""
CLIPS = """
    import sys
    import torch

    sys.path.insert(0, {folder!r})
    import clipping

    weight = torch.ones(3, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(6):
        weight.sum().backward()
        clipping.clip([weight.grad])
        optimizer.step()
        loss = weight.sum().item()
"""


@pytest.mark.parametrize(("options", "owner"), [(["-q"], " of clipping"), (["--no-standins", "--own"], "")])
def test_syncs_of_a_librarys_fallback_say_what_it_misses(
    options: list[str],
    owner: str,
    python: Callable[..., Any],
    write: Callable[[str, str], Path],
    tmp_path: Path,
) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "clipping.py").write_text(textwrap.dedent(LIBRARY))
    write("train.py", textwrap.dedent(CLIPS).format(folder=str(folder)))
    done = check(python, *options, *([] if owner else [str(folder)]), "train.py")
    assert done.returncode == 0, done.stderr
    notes = [finding["evidence"] for finding in json.loads(done.stdout.strip().splitlines()[-1])["findings"]]
    text = f"made by the fallback{owner} without apex: with apex installed this path is not taken"
    assert [text in evidence for evidence in notes].count(True) == 1
    assert len(notes) >= 2
