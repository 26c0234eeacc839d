"""The examples of docs/ops.md run: lines that say so wait, no other does, and both sides are equal."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from rules.running import run

import gapless
from gapless import ops
from gapless.torch_internals import VERSION

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
        waiting_lines = run(before + block + COMPARE, path)
    lines = block.splitlines()
    first = before.count("\n") + 1
    waited = {at - first for at in waiting_lines if first <= at < first + len(lines)}
    marked = {at for at, line in enumerate(lines) if "# waits" in line and _still(line)}
    assert waited == marked, [lines[at] for at in waited ^ marked]


def _still(line: str) -> bool:
    """Whether what a line says of its waits holds for this torch."""
    changed = re.search(r"before torch 2\.(\d+)", line)
    return changed is None or (2, int(changed[1])) > VERSION


def assigned(block: str) -> dict[str, ast.expr]:
    """What a block says of ``before`` and ``after``: expressions of the page's own tensors."""
    values = {}
    for node in ast.parse(block).body:
        name = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""
        if isinstance(node, ast.Assign) and name in ("before", "after"):
            values.setdefault(name, node.value)
        elif name in ("target", "kept"):  # what stands in both sides was made before
            return {}
    return values if values.keys() == {"before", "after"} else {}


SECTIONS = re.split(r"^## ", TEXT, flags=re.MULTILINE)
ADVICE = [
    block
    for section in SECTIONS
    if section.startswith(("Reductions", "Losses"))
    for block in re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    if assigned(block) and "torch.zeros_like" not in block
]
GIVEN = ("x", "z", "mask", "rows", "labels")


@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0")
@pytest.mark.parametrize("number", range(len(ADVICE)))
def test_advice_passes_compare(number: int) -> None:
    """With empty masks and full ones, and gradients, which the page itself does not show."""
    sides = assigned(ADVICE[number])
    named = {node.id for side in sides.values() for node in ast.walk(side) if isinstance(node, ast.Name)}
    used = [name for name in GIVEN if name in named]
    calls = [
        eval(f"lambda {', '.join(used)}: {ast.unparse(sides[side])}", {"torch": torch, "F": F, "ops": ops})
        for side in ("before", "after")
    ]
    random = torch.Generator().manual_seed(0)
    x = torch.randn(8, 4, generator=random, requires_grad=True)
    inputs = {
        "x": x,
        "z": torch.rand(8, 4, generator=random),
        "mask": x.detach() > 0,
        "rows": torch.arange(8) % 3 == 0,
        "labels": torch.arange(8) % 3,
    }
    cases = ["as given", "empty mask", "full mask"]
    proof = gapless.compare(*calls, inputs={name: inputs[name] for name in used}, only=cases)
    proof.assert_same()


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
