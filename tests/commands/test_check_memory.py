"""``gapless check --memory`` and what ``gapless memory`` makes of the session."""

from __future__ import annotations

import json
import re
from pathlib import Path

import fork_server
import pytest

torch = pytest.importorskip("torch")

from gapless.analyze.reports import report  # noqa: E402
from gapless.commands import main  # noqa: E402
from gapless.emulation.emulator import Emulator  # noqa: E402
from gapless.emulation.options import EmulatorOptions  # noqa: E402

SCRIPT = """import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
kept = []
for step in range(12):
    batch = torch.ones(32 + 8 * step, 64).cuda()
    loss = (model(batch) ** 2).mean()
    kept.append(model(batch))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A session with memory, and what was printed."""
    folder = tmp_path_factory.mktemp("memory")
    (folder / "train.py").write_text(SCRIPT)
    words = ("-q", "--memory", "--gpu", "t4", "--no-prices", "--steps", "all", "-o", "run.json", "train.py")
    done = fork_server.run(("-m", "gapless", "check", *words), folder)
    assert done.returncode == 0, done.stderr
    return folder / "run.json", done.stdout


def run(capsys, *words: object) -> tuple[int, str, str]:
    status = main(["memory", *map(str, words)])
    out, err = capsys.readouterr()
    return status, out, err


def test_the_check_tells_of_the_leak(saved) -> None:
    out = " ".join(saved[1].split())
    assert "GAP405 memory-grows" in out
    assert "kept.append(model(batch))" in out
    assert re.search(r"reserved \S+ 24 MiB allocated \S+ 18\.1 MiB", out)
    assert "At the peak, in step 12 of 12: 18.1 MiB allocated" in out
    assert "memory that kernels allocate themselves" in out


def test_memory_reads_the_session(saved, capsys) -> None:
    status, out, err = run(capsys, saved[0])
    assert (status, err) == (0, "")
    assert "reserved of 14.2 GiB on the Tesla T4" in out.replace("\n", " ")
    assert "workspaces" in out
    assert "GAP405 memory-grows" in out
    assert "12 steps" in out
    assert max(map(len, out.splitlines())) <= 80


def test_it_fits_or_not(saved, capsys) -> None:
    assert run(capsys, "--limit", "16MiB", saved[0])[0] == 1
    assert run(capsys, "--limit", "1GiB", saved[0])[0] == 0


def test_json_has_findings_and_steps(saved, capsys) -> None:
    data = json.loads(run(capsys, "-f", "json", "--search", "-q", saved[0])[1])
    assert [finding["code"] for finding in data["findings"]] == ["GAP405"]
    (memory,) = data["memory"]
    assert len(memory["ends"]) == 12
    assert memory["growth"][0]["line"]["code"].startswith("kept.append")


def test_a_session_without_memory_is_refused(saved, capsys, tmp_path) -> None:
    import msgspec

    from gapless.model.session import load, save

    path = tmp_path / "plain.json"
    save(msgspec.structs.replace(load(saved[0]), memory=()), path)
    status, _, err = run(capsys, path)
    assert status == 3
    assert "it was saved without --memory" in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("compiled", "begin"), [(False, "Does not fit: needs"), (True, "May not fit: uncompiled")]
)
def test_what_compiled_code_needs_is_at_most_what_its_lines_need(compiled: bool, begin: str) -> None:
    """It ran line by line: fused kernels would not write all that these did."""
    with Emulator(EmulatorOptions("t4", programme=True, memory=True, dry=True)) as emulator:
        weight = torch.nn.Parameter(torch.ones(1 << 30, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=0.1)

        def loss(weight: torch.Tensor) -> torch.Tensor:
            return (weight.sin() * weight.cos()).sum()

        function = torch.compile(loss) if compiled else loss
        for _ in range(6):
            function(weight).backward()
            optimizer.step()
            optimizer.zero_grad()
    verdict = report(emulator.session()).verdict
    assert verdict.sentence.startswith(begin)
    assert ("this is an upper limit" in verdict.why[0]) == compiled
