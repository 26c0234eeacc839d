"""What a script is told that asks ``nvidia-smi`` of the emulated GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
import torch

import gapless

pytestmark = pytest.mark.skipif(
    shutil.which("nvidia-smi") is not None or sys.platform == "win32", reason="this machine has its own"
)


def run_smi(*words: str, **options: object) -> str:
    return subprocess.run(
        ["nvidia-smi", *words], capture_output=True, text=True, check=True, **options
    ).stdout  # type: ignore[call-overload, no-any-return]


def test_fields_are_those_of_the_emulated_gpus() -> None:
    with gapless.emulate("h100", devices=2):
        kept = torch.empty(1 << 26, device="cuda:1")
        query = "--query-gpu=index,name,memory.total,memory.used,memory.free,compute_cap,power.draw"
        rows = run_smi(query, "--format=csv,noheader,nounits").splitlines()
        name = torch.cuda.get_device_name()
        total = torch.cuda.get_device_properties(0).total_memory >> 20
        used = torch.cuda.memory_reserved(1) >> 20
        assert used >= kept.nbytes >> 20
        assert rows == [
            f"0, {name}, {total}, 0, {total}, 9.0, [N/A]",
            f"1, {name}, {total}, {used}, {total - used}, 9.0, [N/A]",
        ]
        with_units = run_smi("--query-gpu=memory.total", "--format=csv", "-i", "1").splitlines()
        assert with_units == ["memory.total [MiB]", f"{total} MiB"]


def test_every_way_to_ask() -> None:
    with gapless.emulate():
        assert run_smi("-L").startswith("GPU 0: NVIDIA A100")
        assert "NVIDIA A100" in run_smi()
        assert run_smi("-L", env={}).startswith("GPU 0")
        assert subprocess.check_output("nvidia-smi -L | wc -l", shell=True).strip() == b"1"
        with os.popen("nvidia-smi -L") as answer:
            assert answer.read().startswith("GPU 0")
        assert os.system("nvidia-smi -L > /dev/null") == 0


def test_without_an_emulated_gpu_there_is_none() -> None:
    before = os.environ["PATH"]
    with gapless.emulate():
        os.system("nvidia-smi > /dev/null")
    assert os.environ["PATH"] == before
    with pytest.raises(FileNotFoundError):
        run_smi()
