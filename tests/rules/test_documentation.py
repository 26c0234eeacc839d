"""The rules' own examples run on the emulated device: the example waits, and what to use instead does not."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from rules.running import run

from gapless.model import Rule, WaitRule
from gapless.rules import of_kind

PRELUDE = (Path(__file__).parent / "cases" / "prelude.py").read_text()
EXTRA = {
    "GAP120": "dataset = torch.utils.data.TensorDataset(torch.zeros(8, 40_000), torch.zeros(8))\n",
    "GAP133": "group()\n",
    "GAP153": "group()\n",
    "GAP145": "from transformers import Trainer, TrainingArguments\nmodel, dataset = classifier()\n",
    "GAP146": "language_model, tokens = causal_model()\n",
    "GAP141": "import gapless\nimport torchmetrics\n",
    "GAP156": "import gapless\nimport torchmetrics\n",
    "GAP157": "import gapless\nimport torchmetrics\n",
    "GAP158": "import torchmetrics\n",
    "GAP159": "import torchmetrics\n",
}
NOT_RUN = {
    "GAP154": "a class of the user's own, which Lightning's Trainer would have to run",
    "GAP155": "a writer of TensorBoard, which the tests do without",
}
RULES = [rule for rule in of_kind(WaitRule) if rule.code not in NOT_RUN]


def waits(rule: Rule, title: str, folder: Path) -> int:
    """Waits of `rule` in the code of one section."""
    (code,) = re.findall(r"```python\n(.*?)```", rule.sections()[title], flags=re.DOTALL)
    before = PRELUDE + EXTRA.get(rule.code, "")
    path = folder / "example.py"
    path.write_text(before + code)
    with contextlib.redirect_stdout(io.StringIO()):
        found = run(before + code, path)
    first = before.count("\n") + 1
    counted = {number: codes for number, codes in found.items() if number >= first}
    return sum(codes[rule.code] for codes in counted.values())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_example_waits_and_its_replacement_does_not(
    rule: Rule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    named = waits(rule, "Example", tmp_path)
    assert named > 0, "the example never meets the rule"
    left = waits(rule, "Use instead", tmp_path)
    marked = rule.sections()["Use instead"].count("# once")
    fewer = named if "# fewer" in rule.sections()["Use instead"] else 0
    assert left <= marked or left < fewer, f"what to use instead waits {left} times itself"
