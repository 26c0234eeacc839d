"""``gapless trace`` as a user meets it."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import sys
from pathlib import Path

import pytest
from trace_builder import Trace, training

from gapless.commands import main

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"


def run(capsys, *words: object) -> tuple[int, str, str]:
    status = main(["trace", *map(str, words)])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture
def trace(tmp_path) -> Path:
    return training(steps=4).write(tmp_path / "trace.json")


def test_one_trace(capsys, trace):
    status, out, err = run(capsys, trace)
    assert status == 0
    assert out.startswith("Your GPU idles 51 % of each 980 µs step")
    assert "because of item-read at train.py:12, 30 %" in " ".join(out.split())
    assert "GAP101 item-read" in out
    assert "/work/train.py:12 in train" in out
    assert err == ""
    assert max(map(len, out.splitlines())) <= 80


def test_json_has_everything(capsys, trace):
    status, out, _ = run(capsys, "-f", "json", trace)
    data = json.loads(out)
    assert status == 0
    assert data["format"] == "gapless-report"
    assert data["profile"]["steps"]["source"] == "ProfilerStep"
    assert sum(cost["idle"] for cost in data["profile"]["costs"]) == data["profile"]["idle"]
    assert data["findings"][0]["loss"]["idle"] > 0


def test_all_unfolds_kernels_lines_and_phases(capsys, trace):
    _, short, _ = run(capsys, trace)
    _, long, _ = run(capsys, "--all", trace)
    for word in ("gemm_grad", "Launched at", "backward"):
        assert word in long
        assert word not in short


def test_a_saved_profile_is_shown_again(capsys, trace, tmp_path):
    saved = tmp_path / "run.json"
    _, first, _ = run(capsys, "-o", saved, trace)
    assert main(["show", str(saved)]) == 0
    assert capsys.readouterr().out == first


def test_a_trace_is_not_for_show(capsys, trace):
    assert main(["show", str(trace)]) == 3
    assert f"gapless trace {trace}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--max-idle", "99"], 0),
        (["--max-idle", "1"], 1),
        (["--fail-on", "GAP101"], 1),
        (["--fail-on", "GAP6"], 0),
        (["--fail-on", "GAP999"], 2),
        (["--max-idle", "101"], 2),
        (["--on", "moon"], 2),
    ],
)
def test_bounds(capsys, trace, words, status):
    exit_code, out, err = run(capsys, *words, trace)
    assert exit_code == status
    assert bool(err) == bool(status)
    assert bool(out) == (status < 2)


def test_standard_input(capsys, monkeypatch, trace):
    class Piped:
        buffer = io.BytesIO(gzip.compress(trace.read_bytes()))

    monkeypatch.setattr(sys, "stdin", Piped)
    status, out, _ = run(capsys, "-")
    assert status == 0
    assert "GAP101" in out


def test_ranks_are_explained_together(capsys, tmp_path):
    for rank in range(2):
        trace = training(steps=10, rank=rank)
        for step in range(10):
            now = 1000 * step + 700 + 37 * step**2 % 150  # no two distances are alike
            trace.launch(
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                now,
                5,
                kernel=(now + 10 + 90 * rank, 110 - 90 * rank),
            )
        trace.in_order().write(tmp_path / f"rank{rank}.json.gz")
    status, out, _ = run(capsys, tmp_path)
    assert status == 0
    assert out.startswith("The GPU of rank 1 (of 2 in these files) idles ")
    assert "arrives late" in out


def test_runs_that_do_not_belong_together_stay_apart(capsys, tmp_path):
    training(steps=2).write(tmp_path / "one.json")
    training("old", steps=3).write(tmp_path / "two.json")
    status, out, _ = run(capsys, "-q", tmp_path)
    assert status == 0
    assert out.count("Your GPU idles ") == 2


def bad(folder: Path) -> dict[str, Path]:
    """Files that are no traces, each in its own way."""
    cpu = Trace()
    cpu.operator("aten::mm", 0, 10)
    contents = {
        "empty.json": b"",
        "zero.json.gz": b"",
        "empty.json.gz": gzip.compress(b""),
        "text.json": b"hello\n",
        "other.json": b'{"weights": [1, 2]}',
        "list.json": b"[1, 2]",
        "pickle.pickle": b"\x80\x04\x95\x00",
        "cut.json": b'{"traceEv',
        "cpu.json": cpu.text(),
    }
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    (folder / "folder").mkdir()
    return {name: folder / name for name in [*contents, "folder", "missing.json", "none*.json"]}


@pytest.mark.parametrize(
    "name",
    [
        "empty.json",
        "zero.json.gz",
        "empty.json.gz",
        "text.json",
        "other.json",
        "list.json",
        "pickle.pickle",
        "cut.json",
        "cpu.json",
        "folder",
        "missing.json",
        "none*.json",
    ],
)
def test_bad_input_is_one_clear_line(capsys, tmp_path, name):
    status, out, err = run(capsys, bad(tmp_path)[name])
    assert (status, out) == (3, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("gapless: ")
    assert name.partition("*")[0] in err


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(capsys, trace):
    trace.chmod(0)
    status, _, err = run(capsys, trace)
    assert status == 3
    assert "ermission" in err


def test_one_bad_file_does_not_spoil_the_others(capsys, trace, tmp_path):
    (tmp_path / "broken.json").write_bytes(b"")
    status, out, err = run(capsys, trace, tmp_path / "broken.json")
    assert status == 3
    assert "GAP101" in out
    assert "broken.json" in err


def test_a_cut_file_yields_what_it_holds(capsys, trace):
    trace.write_bytes(trace.read_bytes()[: -trace.stat().st_size // 4])
    status, out, _ = run(capsys, trace)
    assert status == 0
    assert "note: " in out
    assert "cut off" in out


def test_a_gate_gives_no_verdict_on_what_was_not_recorded(capsys, trace, tmp_path):
    whole = tmp_path / "whole.json"
    whole.write_bytes(trace.read_bytes())
    trace.write_bytes(trace.read_bytes()[: -trace.stat().st_size // 4])
    for words in (["--max-idle", "1"], ["--max-idle", "99"], ["--fail-on", "GAP101"]):
        status, out, err = run(capsys, *words, trace)
        assert (status, out.startswith("Cannot tell: ")) == (3, True)
        assert "gapless: cannot tell: " in err
    assert main(["compare", "--fail-on-regression", "5", str(whole), str(trace)]) == 3
    out, err = capsys.readouterr()
    assert out.startswith("Cannot tell: after: ")
    assert "(--fail-on-regression)" in err
    _, out, _ = run(capsys, "-f", "json", trace)
    data = json.loads(out)
    assert data["verdict"].startswith("Cannot tell: ")
    assert data["profile"]["coverage"]["cut"] is True


def test_no_trace_named(capsys):
    status, _, err = run(capsys)
    assert status == 2
    assert "no trace given" in err


def test_help_teaches(capsys):
    assert main(["trace", "--help"]) == 0
    out = capsys.readouterr().out
    assert "Examples:" in out
    assert "gapless trace --all ./log/" in out


def test_ascii_where_the_output_can_hold_no_more(monkeypatch, capsys, trace):
    from gapless.commands import _output

    style_for = _output.style_for
    monkeypatch.setattr(
        _output, "style_for", lambda *a, **k: style_for(io.TextIOWrapper(io.BytesIO(), "ascii"), **k)
    )
    _, out, _ = run(capsys, trace)
    assert out.isascii()


@pytest.mark.skipif(not TRACES.is_dir(), reason="the folder of public traces is absent")
def test_every_real_trace_is_read(capsys):
    for path in sorted(TRACES.glob("*.json.gz"))[::5]:
        status, out, err = run(capsys, "--all", path)
        assert status == 0 or "no GPU work" in err, path
        assert max(map(len, out.splitlines()), default=0) < 200


@pytest.mark.skipif(not TRACES.is_dir(), reason="the folder of public traces is absent")
def test_what_would_it_take_without(capsys):
    path = next(TRACES.glob("*asdf_True-41e7*"))
    status, out, _ = run(capsys, "--without", "GAP112", path)
    assert status == 0
    assert re.search(r"[Ww]ithout GAP112 \(\d+ syncs?\)", " ".join(out.split()))
    status, out, err = run(capsys, "--without", "GAP128", path)
    assert (status, out) == (2, "")
    assert "nothing to leave out" in err
    assert run(capsys, "--without", "GAP112", path, path.parent)[0] == 2


def test_prices_can_be_left_out(capsys, trace):
    _, out, _ = run(capsys, "-f", "json", "--no-prices", trace)
    assert json.loads(out)["profile"]["prices"] is None
    _, out, _ = run(capsys, "-f", "json", trace)
    assert json.loads(out)["profile"]["prices"] is not None
