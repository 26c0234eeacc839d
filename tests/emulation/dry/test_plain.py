"""What rules for sizes ask of torch's symbols, answered for plain numbers."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import fork_server
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.emulation.dry import plain

SYMBOLS = "torch.fx.experimental.symbolic_shapes"
NUMBERS = ("guard_int", "guarding_hint_or_throw", "has_guarding_hint", "is_nested_int")
SCRIPT = """
import sys
import torch

layer = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.GELU()).cuda()
optimizer = torch.optim.AdamW(layer.parameters())
for step in range(3):
    out = layer(torch.randn(2, 3, 64, 64, device="cuda"))
    loss = torch.nn.functional.cross_entropy(out.flatten(1), torch.tensor([1, 2], device="cuda"))
    loss.backward()
    optimizer.step()
    out[out > 0].sum().item(), out.argmax(1), torch.arange(5, device="cuda").float().mean()
print("loaded", "sympy" in sys.modules, "torch.fx.experimental.symbolic_shapes" in sys.modules)
import torch.fx.experimental.symbolic_shapes as real
print("real", real.ShapeEnv)
"""


@pytest.fixture
def symbols():
    """torch's own module, whatever stands there now."""
    import torch.fx.experimental.symbolic_shapes as real

    return real


@pytest.mark.filterwarnings("ignore:guard_size_oblivious:FutureWarning")
@given(st.booleans(), st.booleans(), st.integers(-3, 9), st.lists(st.integers(0, 3), max_size=3))
def test_answers_are_those_of_torch(a: bool, b: bool, number: int, shape: list[int]) -> None:
    import torch.fx.experimental.symbolic_shapes as real

    answers = plain._PLAIN_FUNCTIONS[SYMBOLS]
    for name, answer in answers.items():
        if name in ("sym_and", "sym_or"):
            given_to: tuple[object, ...] = (a, b)
        elif name == "sym_eq":
            given_to = (number, len(shape)) if a else (tuple(shape), tuple(shape))
        else:
            given_to = (number,) if name in NUMBERS else (a,)
        assert answer(*given_to) == getattr(real, name)(*given_to), name


def test_the_folder_is_empty_afterwards(monkeypatch: pytest.MonkeyPatch, symbols) -> None:
    monkeypatch.delitem(sys.modules, SYMBOLS)
    with plain.plain_sizes():
        assert sys.modules[SYMBOLS] is not symbols
    with suppress(KeyError), plain.plain_sizes():
        raise KeyError
    assert SYMBOLS not in sys.modules


def test_what_is_not_answered_is_asked_of_the_module(monkeypatch: pytest.MonkeyPatch, symbols) -> None:
    monkeypatch.delitem(sys.modules, "sympy")
    with plain.plain_sizes():
        stands = sys.modules["sympy"]
        assert not isinstance(3, stands.Basic)
        monkeypatch.setattr(plain.importlib, "import_module", lambda name: {"sympy": Path}[name])
        assert stands.cwd == Path.cwd


def test_a_dry_run_loads_no_algebra(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(SCRIPT)
    words = ("-m", "gapless", "check", "--dry", "-q", "--no-loader", "run.py")
    run = fork_server.run(words, tmp_path)
    assert run.returncode == 0, run.stderr
    assert "loaded False False" in run.stdout
    assert "real <class 'torch.fx.experimental.symbolic_shapes.ShapeEnv'>" in run.stdout
