"""`unwait` over two ranks: the same values in fewer collectives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


def test_two_ranks(tmp_path: Path) -> None:
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("torch without gloo")
    script = str(HERE / "unwait_ranks.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen([sys.executable, "-W", "ignore", script, str(rank), str(tmp_path)], env=environment)
        for rank in range(2)
    ]
    assert [one.wait(timeout=120) for one in running] == [0, 0]
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["different"] == []
        assert found["five"] == {"before": 52, "after": 1}
        assert found["loose"] == {"before": 52, "after": 5}
        assert found["nccl"]["error"].startswith("RuntimeError")
        assert found["nccl"]["value"] == 0.5
        assert found["local"] == rank
