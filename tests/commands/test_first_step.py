"""A run that ends before its first step says why in its first sentence."""

from __future__ import annotations

import pytest
from consistency import contradictions

from gapless.analyze import report
from gapless.memory.recorder import Recorder
from gapless.model import Ending, Environment, Session

pytest.importorskip("torch")

BEGIN = """\
import torch
net = torch.nn.Linear(10, 10).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
x = torch.randn(4, 10, device="cuda")
"""
FAILS = BEGIN + "net(torch.randn(4, 11, device='cuda')).sum().backward()\n"
EXITS = BEGIN + "raise SystemExit(3)\n"
CAPTURES = (
    BEGIN + "graph = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(graph):\n    y = net(x).sum().item()\n"
)
IMPORTS = "import torch\nimport my_cuda_extension\n"
FINISHES = BEGIN + "print(x.sum().item())\n"


@pytest.mark.parametrize(
    ("script", "first"),
    [
        (FAILS, "train.py failed before its first step: RuntimeError: mat1 and mat2 shapes cannot be"),
        (EXITS, "train.py exited with status 3 before its first step."),
        (
            IMPORTS,
            "train.py failed before it used the GPU: ModuleNotFoundError: No module named 'my_cuda_ext",
        ),
        (FINISHES, "3 syncs in train.py, but no training step was seen."),
    ],
)
def test_the_first_sentence_says_why_there_was_no_step(script, first, write, python):
    write("train.py", script)
    process = python("-m", "gapless", "check", "-q", "train.py")
    text = " ".join(process.stdout.split())
    assert first in text[: len(first) + 60]
    assert ("recognizes steps by" in text) == (script is FINISHES)


@pytest.mark.parametrize(
    ("message", "world", "hinted"),
    [
        ("KeyError: 'LOCAL_RANK'", 1, True),
        ("KeyError: 'WORLD_SIZE'", 1, True),
        (
            "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable "
            "RANK expected, but not set",
            1,
            True,
        ),
        ("KeyError: 'RANK'", 8, False),
        ("KeyError: 'rank'", 1, False),
        ("KeyError: 'RANKING'", 1, False),
    ],
)
def test_a_script_that_needs_a_launcher_is_told_the_command(message, world, hinted):
    ending = Ending(how="error", status=1, message=message)
    environment = Environment(world_size=world, emulated=True)
    result = report(Session(script=("train.py",), environment=environment, ending=ending))
    assert result.verdict.sentence.startswith(f"train.py failed before its first step: {message}")
    hint = " (`--world-size N` runs it as one of N ranks)"
    assert result.verdict.sentence.endswith(hint) == hinted


@pytest.mark.parametrize("table", ["os.environ", "{}"])
def test_a_key_that_is_no_environment_variable_has_nothing_to_do_with_ranks(table, write, python):
    """Of the same name: a column of results, say. What is advised is enough."""
    write("train.py", f"import os\nimport torch\nx = torch.ones(3).cuda()\nprint({table}['RANK'], x.sum())\n")
    text = " ".join(python("-m", "gapless", "check", "-q", "train.py").stdout.split())
    assert ("--world-size" in text) == (table == "os.environ")
    if table == "os.environ":
        assert (
            "KeyError" not in python("-m", "gapless", "check", "-q", "--world-size", "2", "train.py").stdout
        )


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        (Ending(how="error", status=1, message="ValueError: no"), "train.py failed before its first step: V"),
        (Ending(), "Fits the Tesla T4: peak 16 of 100 MiB reserved"),
    ],
)
def test_what_failed_before_its_first_step_is_not_said_to_fit(ending, said):
    memory = Recorder()
    memory.alloc("weights", 16 << 20, kind="parameter")
    run = memory.run(origin="emulated", gpu="Tesla T4", limit=100 << 20, total_memory=612 << 20)
    environment = Environment(device="Tesla T4", emulated=True)
    result = report(Session(script=("train.py",), environment=environment, ending=ending, memory=(run,)))
    assert result.verdict.sentence.startswith(said)
    assert contradictions(result) == []


def test_a_capture_that_is_refused_is_why(write, python):
    write("train.py", CAPTURES)
    text = " ".join(python("-m", "gapless", "check", "-q", "train.py").stdout.split())
    assert text.startswith("CUDA refuses to capture a graph (train.py:7).")
    assert "Therefore train.py failed before its first step" in text
    assert "recognizes steps by" not in text
