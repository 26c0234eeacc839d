"""`unwait` over two ranks: the same values in fewer collectives."""

from __future__ import annotations

import json
from pathlib import Path

import fork_server
import pytest
import torch

HERE = Path(__file__).parent


def test_two_ranks(tmp_path: Path) -> None:
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("torch without gloo")
    for done in fork_server.ranks(2, (str(HERE / "unwait_ranks.py"), str(tmp_path)), tmp_path):
        assert done.returncode == 0, done.stderr
    for rank in range(2):
        results = json.loads((tmp_path / f"{rank}.json").read_text())
        assert results["different"] == []
        assert results["five"] == {"before": 52, "after": 1}
        assert results["loose"] == {"before": 52, "after": 5}
        assert results["nccl"]["error"].startswith("RuntimeError")
        assert results["nccl"]["value"] == 0.5
        assert results["local"] == rank
