"""Reports in a real Jupyter kernel: each is shown once, as HTML with text beside it."""

from __future__ import annotations

from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

TRAIN = """%%gapless --into seen
import torch
model = torch.nn.Linear(4, 4).to("cuda")
opt = torch.optim.SGD(model.parameters(), 0.1)
for step in range(6):
    loss = model(torch.randn(2, 4, device="cuda")).sum()
    loss.backward()
    opt.step()
    loss.item()
"""
CELLS = (
    "%load_ext gapless",
    TRAIN,
    "seen",
    "from gapless.integrations.notebook import as_text\nprint(as_text(seen))",
    "import gapless\nwith gapless.emulate() as emulation:\n    torch.ones(2, device='cuda').sum().item()\n"
    "gapless.report(emulation.session)",
    "from gapless.commands import main\nmain(['rule', 'GAP101'])",
)


@pytest.fixture(scope="module")
def outputs() -> list[list[Any]]:
    """The outputs of each of `CELLS`, run in one kernel."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    return [cell.outputs for cell in notebook.cells]


@pytest.mark.parametrize("cell", [1, 2, 4])
def test_a_report_is_shown_once_as_html_and_text(outputs, cell):
    (output,) = outputs[cell]
    assert output.output_type == "execute_result"
    assert "sync" in output.data["text/html"]
    assert "sync" in output.data["text/plain"]


def test_a_report_as_text_is_returned_and_not_displayed(outputs):
    (output,) = outputs[3]
    assert (output.output_type, output.name) == ("stream", "stdout")
    assert "loss.item()" in output.text


def test_a_command_writes_one_stream(outputs):
    kinds = [output.output_type for output in outputs[5]]
    assert kinds[0] == "stream"
    assert "display_data" not in kinds
