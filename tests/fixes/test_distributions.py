"""Distributions that check no arguments."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fixes.rewriting import rewrite

IMPORTS = {
    "from torch.distributions import Normal as N\n": "N",
    "import torch.distributions as d\n": "d.Normal",
    "from torch import distributions\n": "distributions.Normal",
    "": "torch.distributions.Normal",
}


@pytest.fixture(autouse=True)
def usual_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts that ran before in this process may have turned the checks off."""
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)


@pytest.mark.parametrize("imported", IMPORTS)
def test_a_distribution_checks_nothing(imported: str, tmp_path: Path) -> None:
    text = (
        f"{imported}for i in range(5):\n    y = {IMPORTS[imported]}(model(x), 1.0)\n"
        "    print(f'{y.log_prob(x[:, :1]).sum().detach():.9f}')\n    train()\n"
    )
    rewriting = rewrite(tmp_path, text)
    assert f"{IMPORTS[imported]}(model(x), 1.0, validate_args=False)" in rewriting.text
    assert rewriting.after.printed == rewriting.before.printed
    assert rewriting.waits[1] < rewriting.waits[0]


@pytest.mark.parametrize("option", ["validate_args=True", "None", "True"])
def test_checks_that_are_asked_for_stay(option: str, tmp_path: Path) -> None:
    call = f"torch.distributions.Normal(model(x), 1.0, {option})"
    text = f"for i in range(5):\n    y = {call}\n    train()\n"
    rewriting = rewrite(tmp_path, text)
    assert "`validate_args` is set at line 13" in " ".join(rewriting.refusals)


def test_checks_whose_error_is_handled_stay(tmp_path: Path) -> None:
    text = (
        "for i in range(5):\n    try:\n        y = torch.distributions.Normal(model(x), 1.0)\n"
        "    except ValueError:\n        y = None\n    train()\n"
    )
    rewriting = rewrite(tmp_path, text)
    assert "the function handles what a check raises" in rewriting.refusals
    assert rewriting.text.endswith(text)
