"""What a command reads it does not write over."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gapless.commands import main

SAVED = Path(__file__).parents[1] / "model" / "saved"


@pytest.mark.parametrize("command", ["memory", "loader"])
@pytest.mark.parametrize("linked", [False, True])
def test_a_result_is_not_saved_over_what_it_was_read_from(tmp_path, capsys, command, linked):
    path = tmp_path / "run.json"
    shutil.copy(SAVED / f"{command}.json", path)
    onto = tmp_path / "other.json" if linked else path
    if linked:
        onto.symlink_to(path)
    before = path.read_bytes()
    assert main([command, "-q", "-o", str(onto), str(path)]) == 2
    assert f"{onto} is read: write to another file" in capsys.readouterr().err
    assert path.read_bytes() == before
