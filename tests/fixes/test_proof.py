"""Edits that are right are proved; of those that are wrong the first difference is named."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gapless.analyze import report
from gapless.errors import UsageError
from gapless.fixes.proof import ProjectVersion, Prover, ScriptProject, proving
from gapless.fixes.proof.edited_lines import lines_to_run
from gapless.fixes.proof.first_difference import RunComparison
from gapless.fixes.proof.project import _MAX_BYTES_COPIED, COPIES_PREFIX
from gapless.fixes.proof.states import ValueStore
from gapless.fixes.proof.versions import of_patch, of_paths
from gapless.fixes.proof.writes import LinkGuard
from gapless.model.fix import Edit, FixProof

SCRIPT = """\
import time
import numpy
import torch
from torch import nn
from lib.batches import batches

torch.manual_seed(3)
started = time.perf_counter()
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
copied, average = torch.cuda.Stream(), torch.optim.swa_utils.AveragedModel(model)
total, hits, last = 0.0, 0, 0.0
for step, (x, y) in enumerate(batches()):
    x, y = x.cuda(), y.cuda()
    out = model(x)
    loss = nn.functional.cross_entropy(out, y)
    if step == 2:
        with torch.no_grad():
            model[0].bias.mul_(1.0)
    if step > 100:
        last = last * 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step(), average.update_parameters(model)
    total += loss.item()
    hits += (out.argmax(1) == y).sum().item()
    if step % 4 == 3:
        print(f"step {step} loss {total / (step + 1):.6f} ({time.perf_counter() - started:.3f} s)")
print("hits", hits, "of", 64)
seconds = time.perf_counter() - started
torch.save({"average": average, "loss": float(total), "train_time": seconds}, "last.pt")
open("events", "wb").write(bytes(3))
numpy.save("loss.npy", float(total))
open("summary", "w").write(f"{float(total):.3f} in {seconds:.1f} s")
"""

BATCHES = """\
import torch


def batches():
    for _ in range(8):
        yield torch.randn(8, 8), torch.randint(0, 4, (8,))
"""

WRONG = {
    "another reduction": ("entropy(out, y)", 'entropy(out, y, reduction="sum")', "step 1, Sequential"),
    "a changed order": (
        "    loss.backward()\n    optimizer.step(),",
        "    optimizer.step()\n    loss.backward(),",
        "step 1, Sequential",
    ),
    "half the precision": ("total += loss.item()", "total += loss.half().item()", "is 'step 3 loss"),
    "float for int": ('"hits", hits', '"hits", float(hits)', ".0 of 64' instead of 'hits "),
    "a print left out": ('print("hits", hits, "of", 64)', "pass", "is not printed: 'hits"),
    "a print more": ("loss.backward()\n", "loss.backward()\n    step == 5 and print(5)\n", "is new: '5'"),
    "gradients kept": ("    optimizer.zero_grad()\n", "", "step 2, Sequential"),
    "random numbers drawn": ('print("hits"', 'torch.rand(1); print("hits"', "random numbers of torch"),
    "another learning rate at the end": (
        'print("hits"',
        'optimizer.param_groups[0]["lr"] = 0.5; optimizer.step(); print("hits"',
        "an optimizer step beyond the 8 before",
    ),
    "a race": (
        "    out = model(x)\n",
        "    with torch.cuda.stream(copied):\n        z = x * 2\n    out = model(x + 0 * z)\n",
        "a race at train.py:1",
    ),
    "a sync that moved": (
        "    hits += (out.argmax(1) == y).sum().item()\n",
        "    hit = (out.argmax(1) == y).sum()\n    hits += 0\n    hits += int(hit)\n",
        "syncs move: train.py:",
    ),
    "a buffer": (
        "total += loss.item()",
        "total += loss.item(); model[1].running_mean.add_(1e-6)",
        "step 2, Sequential.1.running_mean",
    ),
    "a state after the last step": (
        'print("hits", hits',
        'model[0].bias.data.add_(1); print("hits", hits',
        "at the end, Sequential.0.bias",
    ),
    "an average": (
        "average.update_parameters(model)",
        "step and average.update_parameters(model)",
        "step 2, untrained AveragedModel.",
    ),
    "a saved number": ('"loss": float(total)', '"loss": float(total) + 1', "is saved, last.pt['loss']: "),
    "a saved type": ('"loss": float(total)', '"loss": loss.detach().double()', "last.pt['loss']: dtype"),
    "a file of data": ('.npy", float(total)', '.npy", float(total) + 1', "line 1 of loss.npy is 'data with"),
    "a file of text": ("{float(total):.3f} in", "{float(total):.4f} in", "line 1 of summary is '"),
    "a crash": ("total += loss.item()", "total += loss.numpy()", "ends with TypeError: can't convert cuda:0"),
}  # fmt: skip

RIGHT = {
    "an accumulator": ("total += loss.item()", "total += loss.detach().double()"),
    "an integer accumulator": (
        SCRIPT[SCRIPT.index("hits += ") :],
        SCRIPT[SCRIPT.index("hits += ") :]
        .replace(".sum().item()", ".sum()")
        .replace('s", hits', 's", int(hits)'),
    ),
    "two reads at once": (
        "    total += loss.item()\n    hits += (out.argmax(1) == y).sum().item()\n",
        "    both = torch.stack([loss.detach().double(), (out.argmax(1) == y).sum().double()]).tolist()\n"
        "    total += both[0]\n    hits += int(both[1])\n",
    ),
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> ScriptProject:
    """A script in a folder below its root, which imports a module of the root by its place."""
    root = tmp_path_factory.mktemp("project")
    (root / "pyproject.toml").touch()
    (root / "lib").mkdir()
    (root / "lib" / "batches.py").write_text(BATCHES)
    (root / "train.py").write_text(SCRIPT)
    return ScriptProject.of(root / "train.py")


@pytest.fixture(scope="module")
def prover(project: ScriptProject) -> Iterator[Prover]:
    with Prover(ProjectVersion(project)) as running:
        yield running


def edited(project: ScriptProject, old: str, new: str) -> ProjectVersion:
    text = (project.root / project.script).read_text()
    assert text.count(old) == 1
    start = len(text[: text.index(old)].encode())
    return ProjectVersion.with_edits(project, [Edit("train.py", start, start + len(old), new)])


@pytest.mark.parametrize("name", WRONG)
def test_wrong_edits_are_refused(name: str, prover: Prover, project: ScriptProject) -> None:
    old, new, text = WRONG[name]
    proof = prover.prove(edited(project, old, new))
    assert (proof.outcome, proof.proved) == ("refused", False), proof
    assert text in proof.reason
    assert report(proof).verdict.sentence == f"Refused: {proof.reason}"


@pytest.mark.parametrize("name", RIGHT)
def test_right_edits_are_proved(name: str, prover: Prover, project: ScriptProject) -> None:
    proof = prover.prove(edited(project, *RIGHT[name]))
    assert (proof.outcome, proof.proved, proof.parameters) == ("bits", True, "bits"), proof
    assert proof.printed
    assert "not compared: events, which the script writes" in proof.notes
    assert proof.steps == 8
    assert proof.after < proof.before
    assert report(proof).verdict.level == "fine"


def test_an_edit_without_a_gain_is_the_same_but_no_fix(prover: Prover, project: ScriptProject) -> None:
    proof = prover.prove(edited(project, "total += loss.item()", "total += float(loss)"))
    assert (proof.outcome, proof.is_same, proof.proved) == ("bits", True, False)
    assert proof.before == proof.after > 0


def test_a_sync_that_was_only_laid_out_anew_has_not_moved(prover: Prover, project: ScriptProject) -> None:
    new = "total += (\n        # the loss\n        loss.item()\n    )"
    proof = prover.prove(edited(project, "total += loss.item()", new))
    assert (proof.outcome, proof.lines) == ("bits", ())


def test_a_line_that_never_ran_proves_nothing(prover: Prover, project: ScriptProject) -> None:
    proof = prover.prove(edited(project, "last = last * 2", "last = last * 3"))
    assert (proof.outcome, proof.proved) == ("unprovable", False)
    assert [(line.file, line.line) for line in proof.not_run] == [("train.py", 21)]
    assert proof.reason == "an edited line never ran: train.py:21"


def test_a_removed_line_that_never_ran_is_named(prover: Prover, project: ScriptProject) -> None:
    old = "    if step > 100:\n        last = last * 2\n    optimizer.zero_grad()\n"
    proof = prover.prove(edited(project, old, "    optimizer.zero_grad()\n"))
    assert (proof.outcome, proof.reason) == ("unprovable", "an edited line never ran: train.py:21")


def test_what_ran_instead_of_a_line_that_never_ran_proves_nothing(
    prover: Prover, project: ScriptProject
) -> None:
    old = "    if step > 100:\n        last = last * 2\n"
    proof = prover.prove(edited(project, old, "    last = last * 1\n"))
    assert (proof.outcome, proof.reason) == ("unprovable", "an edited line never ran: train.py:21")


def test_lines_without_code_of_their_own_run_with_their_statement() -> None:
    text = b"def f(a):\n    # why\n    b = (\n        1,\n        2,\n    )\n    return b\n"
    assert lines_to_run(text, range(5, 6)) == {3}
    assert lines_to_run(text, range(2, 3)) == frozenset()
    assert lines_to_run(text, range(6, 8)) == {3, 7}


def test_an_edit_of_a_module_counts(prover: Prover, project: ScriptProject) -> None:
    version = ProjectVersion(project, {"lib/batches.py": BATCHES.replace("randn", "rand").encode()})
    proof = prover.prove(version)
    assert proof.outcome == "refused"
    assert "step 1" in proof.reason


def test_an_endless_run_is_ended(
    prover: Prover, project: ScriptProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prover.before.record.ending.is_good
    monkeypatch.setattr(proving, "_LIMIT_FACTOR", 0.0)
    monkeypatch.setattr(proving, "_LIMIT_EXTRA_SECONDS", 2.0)
    proof = prover.prove(edited(project, 'print("hits"', 'time.sleep(600); print("hits"'))
    assert proof.outcome == "unprovable"
    assert "the run did not end in 2 s" in proof.reason
    assert proof.after == -1.0


def test_the_sign_of_a_zero_counts_and_the_bits_of_nan_do_not(tmp_path: Path) -> None:
    store = ValueStore(str(tmp_path / "values"))
    run: Any = SimpleNamespace(values=tmp_path / "values")
    nan = torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32)
    tensors = torch.zeros(1), -torch.zeros(1), nan.new_full((1,), math.nan), nan
    zero, negative, quiet, other = (store.record("w", tensor) for tensor in tensors)
    exact = RunComparison(run, run)
    assert exact.compare_tensors(zero, negative).startswith("the sign of w: True instead of False at [0]")
    assert quiet.digest != other.digest
    assert not exact.compare_tensors(quiet, other)
    assert not exact.rounded
    rounded = RunComparison(run, run, rounding=1e-6)
    assert not rounded.compare_tensors(zero, negative)
    assert rounded.rounded


def run_alone(prover: Prover, folder: Path, before: str, after: str) -> FixProof:
    (folder / "a.py").write_text(before)
    (folder / "b.py").write_text(after)
    versions = of_paths(str(folder / "a.py"), str(folder / "b.py"))
    alone = Prover(versions[0])
    alone._runner.close()
    alone._runner = prover._runner  # which has imported torch
    return alone.prove(versions[1])


def test_a_version_before_that_fails_proves_nothing(prover: Prover, tmp_path: Path) -> None:
    proof = run_alone(
        prover,
        tmp_path,
        "import torch\nraise ValueError('no data')\n",
        "import torch\nraise ValueError('no data')\n\n",
    )
    assert proof.outcome == "unprovable"
    assert proof.reason == (
        "the version before ends with ValueError: no data at a.py:2: nothing can be compared with that"
    )


def test_a_script_that_differs_by_itself_is_not_refused(prover: Prover, tmp_path: Path) -> None:
    text = "import os, torch\nprint(os.urandom(4).hex(), torch.zeros(1).cuda().item())\n"
    proof = run_alone(prover, tmp_path, text, text.replace(".item()", ".tolist()[0]"))
    assert proof.outcome == "unprovable"
    assert proof.reason.startswith("the script differs from run to run by itself: line 1 of standard output")


# -- the project ---------------------------------------------------------------------------------


def test_copies_hold_the_project_and_link_its_data(tmp_path: Path) -> None:
    root = tmp_path / "project"
    (root / "pkg" / "__pycache__").mkdir(parents=True)
    (root / "pkg" / "__pycache__" / "a.pyc").touch()
    (root / "pkg" / "a.py").write_text("A = 1\n")
    (root / "weights.bin").write_bytes(bytes(_MAX_BYTES_COPIED + 1))
    (root / "images").mkdir()
    for number in range(501):
        (root / "images" / f"{number}.png").touch()
    (root / "setup.py").touch()
    version = ProjectVersion(
        ScriptProject.of(root / "pkg" / "a.py"), {"pkg/a.py": b"A = 2\n", "setup.py": None}
    )
    copy = tmp_path / "copy"
    version.copy_to(copy)
    assert version.project.root == root.resolve()
    assert (copy / "pkg" / "a.py").read_text() == "A = 2\n"
    assert (root / "pkg" / "a.py").read_text() == "A = 1\n"
    assert not (copy / "pkg" / "__pycache__").exists()
    assert not (copy / "setup.py").exists()
    assert (copy / "weights.bin").is_symlink()
    assert (copy / "images").is_symlink()

    guard = LinkGuard(str(copy), str(root.resolve()))
    guard.prepare(str(copy / "weights.bin"))
    guard.prepare(str(copy / "images" / "3.png"))
    assert not (copy / "weights.bin").is_symlink()
    assert not (copy / "images" / "3.png").is_symlink()
    assert (copy / "images" / "4.png").is_symlink()
    guard.prepare(str(root.resolve() / f"{COPIES_PREFIX}1" / "record"))
    with pytest.raises(PermissionError, match="does not write into the project"):
        guard.prepare(str(root.resolve() / "log.txt"))


def test_a_patch_names_the_version_after(project: ScriptProject, tmp_path: Path) -> None:
    patch = tmp_path / "fix.diff"
    patch.write_text(
        "--- a/train.py\n+++ b/train.py\n@@ -1,2 +1,2 @@\n-import time\n+import os\n import numpy\n"
    )
    _, after = of_patch(str(project.root / "train.py"), str(patch))
    assert (after.read("train.py") or b"").startswith(b"import os\nimport numpy\n")
    patch.write_text(patch.read_text().replace("import numpy", "import random"))
    with pytest.raises(UsageError, match="does not apply"):
        of_patch(str(project.root / "train.py"), str(patch))
