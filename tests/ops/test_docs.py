"""The examples of docs/ops.md run: lines that say so wait, no other does, and both sides are equal."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from rules.running import run

from gapless import ops

TEXT = (Path(__file__).parents[2] / "docs" / "ops.md").read_text(encoding="utf-8")
PRELUDE, *BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
COMPARE = """
if "before" in globals() and "after" in globals():
    found, wanted = after, before
    if not isinstance(wanted, torch.Tensor):
        wanted = torch.tensor(wanted, device=found.device)
    if found.shape != wanted.shape:
        found = found[: wanted.shape[0]]
    torch.testing.assert_close(found, wanted.to(found.dtype))
"""


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_example(number: int, tmp_path: Path) -> None:
    block = BLOCKS[number]
    before = "import torch\ntorch.manual_seed(0)\n" + PRELUDE
    path = tmp_path / "example.py"
    path.write_text(before + block + COMPARE)
    with contextlib.redirect_stdout(io.StringIO()):
        found = run(before + block + COMPARE, path)
    lines = block.splitlines()
    first = before.count("\n") + 1
    waited = {at - first for at in found if first <= at < first + len(lines)}
    marked = {at for at, line in enumerate(lines) if "# waits" in line}
    assert waited == marked, [lines[at] for at in waited ^ marked]


def test_every_operation_has_an_example_and_a_row() -> None:
    shown = "".join(BLOCKS)
    kinds = {"Bounded", "Distinct", "Reading"}  # what operations give
    for name in set(ops.__all__) - kinds:
        assert f"ops.{name}(" in shown, name


def test_links_lead_to_headings() -> None:
    headings = {
        re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-")
        for h in re.findall(r"^## (.*)$", TEXT, flags=re.M)
    }
    assert set(re.findall(r"\]\(#([\w-]+)\)", TEXT)) <= headings


def test_rules_name_operations_that_exist() -> None:
    rules = Path(__file__).parents[2] / "src" / "gapless" / "rules"
    named = {
        name
        for file in rules.glob("gap*.py")
        for name in re.findall(r"gapless\.ops\.(\w+)", file.read_text())
    }
    assert len(named) > 10
    assert named <= set(ops.__all__), named - set(ops.__all__)
