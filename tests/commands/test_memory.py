"""``gapless memory`` as a user meets it."""

from __future__ import annotations

import gzip
import json
import pickle
import re
from pathlib import Path

import pytest

from gapless.commands import main
from gapless.commands.memory import parse_size
from gapless.errors import UsageError
from gapless.memory.export import export
from gapless.memory.recorder import Recorder
from gapless.memory.sizes import MIB
from gapless.model.memory import save
from gapless.model.source import SourceLine
from gapless.render._tables import sparkline
from tests.trace_builder import Trace

LINE = SourceLine("/home/me/model.py", 10, "forward")


def run(capsys, *words: object) -> tuple[int, str, str]:
    status = main(["memory", *map(str, words)])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture
def snapshot(tmp_path) -> Path:
    """Tensors that grow from step to step, one after the other: no cached block ever fits."""
    recorder = Recorder()
    recorder.alloc("weights", 30 * MIB, stack=[LINE], kind="parameter")
    for number in range(20):
        recorder.alloc("x", (20 + 2 * number) * MIB, stack=[LINE], kind="activation")
        recorder.free("x")
    path = tmp_path / "snapshot.pickle"
    export(recorder.run(), path)
    return path


def test_a_report(capsys, snapshot):
    status, out, err = run(capsys, snapshot)
    assert (status, err) == (0, "")
    assert " ".join(out.split()).startswith(
        "At most 810 MiB reserved, 88 MiB allocated: 89 % of the reserved memory was never in use at once."
    )
    assert "me/model.py:10 forward" in out
    assert "21 cudaMalloc" in out
    text = " ".join(out.split())
    assert "exact: calls and reserved memory match the recording, and so do 21 of 21 addresses" in text
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True 810 → 100 MiB" in text
    assert "Other settings of the allocator were not tried (`--search`)" in text
    assert not any(line.endswith(" ") for line in out.splitlines())
    assert max(map(len, out.splitlines())) <= 80


def test_json_has_everything(capsys, snapshot):
    status, out, _ = run(capsys, "-f", "json", snapshot)
    data = json.loads(out)
    assert status == 0
    assert (data["format"], data["version"], data["kind"]) == ("gapless-report", 2, "memory")
    (data,) = data["memory"]
    assert data["baseline"]["mallocs"] == 21
    assert data["fidelity"]["exact"] is True
    assert data["peak"]["owners"][0]["line"]["file"] == "/home/me/model.py"


def test_settings_to_try(capsys, snapshot):
    status, out, _ = run(
        capsys, "--try", "expandable_segments:True", "--try", "max_split_size_mb:512", snapshot
    )
    assert status == 0
    text = " ".join(out.split())
    assert "1 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True 810 → 100 MiB" in text
    assert "expandable_segments:True 100 MiB -87.7 %" in text
    assert "max_split_size_mb:512 810 MiB 0 %" in text
    assert max(map(len, out.splitlines())) <= 80


def test_a_search(capsys, snapshot):
    status, out, err = run(capsys, "--search", "--limit", "200MiB", snapshot)
    assert status == 0
    assert "requests found the GPU full" in out
    assert "settings that do no better (--all)" in out
    assert err == ""
    _, everything, _ = run(capsys, "--search", "--limit", "200MiB", "--all", snapshot)
    assert everything.count("max_split_size_mb") > out.count("max_split_size_mb")
    assert "(--all)" not in everything


def test_it_does_not_fit(capsys, snapshot):
    status, out, _ = run(capsys, "--limit", "80MiB", snapshot)
    assert status == 1
    assert out.startswith("Does not fit: needs 88 MiB, there are 80 MiB: 8 MiB short.")
    assert "No allocator setting helps (" in out
    assert re.search(r"  31 other settings: out of memory at 56–80 %\n", out)
    out = run(capsys, "--limit", "80MiB", "--try", "expandable_segments:True", snapshot)[1]
    assert re.search(r"  expandable_segments:True +fails at 80 %\n", out)
    assert run(capsys, "--gpu", "a10", snapshot)[0] == 0


def test_a_gpu_that_is_unknown(capsys, snapshot):
    status, out, err = run(capsys, "--gpu", "z80", snapshot)
    assert (status, out) == (2, "")
    assert "unknown GPU 'z80'" in err


def test_settings_that_torch_refuses(capsys, snapshot):
    status, out, err = run(capsys, "--try", "expandable_segments:true", snapshot)
    assert (status, out) == (2, "")
    assert err == "gapless: expandable_segments must be written True or False, not 'true'\n"


def test_saved_and_read_again(capsys, snapshot, tmp_path):
    saved = tmp_path / "run.json"
    _, first, _ = run(capsys, "-o", saved, snapshot)
    status, again, _ = run(capsys, saved)
    assert status == 0
    assert again == first


def test_an_export_is_replayed(capsys, snapshot, tmp_path):
    after = tmp_path / "after.pickle"
    status, _, _ = run(capsys, "--try", "expandable_segments:True", "--export", after, snapshot)
    assert status == 0
    status, out, _ = run(capsys, after)
    assert status == 0
    assert "expandable_segments:True" in out
    assert "exact: calls and reserved memory match the recording" in out


def test_several_devices(capsys, tmp_path):
    free = {"action": "segment_free", "addr": 1 << 40, "size": 20 * MIB, "stream": 0}
    more = {**free, "addr": 1 << 41}
    path = tmp_path / "two.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[free], [free, more]]}))
    out = run(capsys, path)[1]
    assert " · GPU 1 · " in out
    assert "GPU 0: at most 20 MiB reserved, no request failed (--device 0)" in out
    assert " · GPU 0 · " in run(capsys, "--device", 0, path)[1]
    status, _, err = run(capsys, "--device", 5, path)
    assert status == 2
    assert err == "gapless: nothing was recorded for device 5: there is 0, 1\n"


def test_other_files_are_no_snapshot(capsys, tmp_path):
    path = tmp_path / "x.pickle"
    path.write_bytes(b"nothing")
    status, out, err = run(capsys, path)
    assert (status, out) == (3, "")
    assert err.startswith(f"gapless: {path} is not a pickle, or is damaged")
    assert err.count("\n") == 1
    status, _, err = run(capsys, tmp_path / "none")
    assert status == 3
    assert "cannot read" in err
    path.write_text('{"traceEvents": []}')
    _, _, err = run(capsys, path)
    assert err == f"gapless: {path} is a trace without events: nothing was recorded\n"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 << 30),
        ("24G", 24 << 30),
        ("22.5GB", 22_500_000_000),
        ("512 mib", 512 << 20),
        ("1000", 1000),
        ("7B", 7),
        ("1.5TiB", 3 << 39),
        ("2kB", 2000),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1GiB", "1 2", "1XB"])
def test_malformed_sizes_are_refused(text):
    with pytest.raises(UsageError, match="is not a size"):
        parse_size(text)


def test_sparklines():
    assert sparkline([0, 1 / 8, 2 / 8, 4 / 8, 1], 5) == " ▁▂▄█"
    assert sparkline([0, 1, 0, 0], 2) == "█ "
    assert sparkline([1, 1], 10) == "██"
    assert sparkline([0, 1], 2, unicode=False) == " #"
    assert sparkline([0, 0], 2) == "  "


# Other files than snapshots -----------------------------------------------------------------------


def profile(cached: int = 0) -> Trace:
    """Tensors that come and go; with so many MiB `cached` from before."""
    trace = Trace()
    trace.kernel("k", 1, 2)
    for number in range(8):
        size = (20 + 2 * number) * MIB
        at = 100 * number + 10
        reserved = (cached + 20 * (number + 1) + number * (number + 1)) * MIB
        trace.operator("aten::mm", at - 1, 2, stack="/home/me/train.py(12): train")
        trace.memory(at, size, allocated=size, reserved=reserved, address=(number + 1) << 30)
        trace.memory(at + 50, -size, allocated=0, reserved=reserved, address=(number + 1) << 30)
    return trace


def test_a_profile(capsys, tmp_path):
    path = profile().write(tmp_path / "trace.json.gz")
    status, out, err = run(capsys, path)
    assert (status, err) == (0, "")
    assert out.startswith("At most 216 MiB reserved, 34 MiB allocated")
    assert "At the peak, event 15 of 16, in aten::mm: 34 MiB allocated" in out
    assert "me/train.py:12 train" in out
    assert "Other settings of the allocator were not tried (`--search`)" in " ".join(out.split())
    _, out, _ = run(capsys, "--try", "expandable_segments:True", path)
    assert "expandable_segments:True 40 MiB" in " ".join(out.split())
    assert "these numbers come from a replay of what the profile shows" in " ".join(out.split())


def test_a_profile_that_tells_too_little_for_a_replay(capsys, tmp_path):
    path = profile(cached=400).write(tmp_path / "trace.json")
    status, out, _ = run(capsys, "--search", path)
    assert status == 0
    assert out.startswith("At most 616 MiB reserved, 34 MiB allocated")
    assert "other settings cannot be tried" in out
    assert "--search" not in out
    assert run(capsys, "--limit", "30MB", path)[0] == 1
    assert run(capsys, "--limit", "500MB", path)[0] == 0
    status, _, err = run(capsys, "--export", tmp_path / "x.pickle", path)
    assert status == 2
    assert err == f"gapless: --export writes a replay, but {path} does not contain enough for one\n"
    saved = tmp_path / "run.json"
    _, first, _ = run(capsys, "-o", saved, path)
    assert run(capsys, saved)[1].splitlines()[3:] == first.splitlines()[3:]


def test_a_packed_snapshot(capsys, snapshot, tmp_path):
    _, plain, _ = run(capsys, snapshot)
    packed = tmp_path / "s.gz"
    packed.write_bytes(gzip.compress(snapshot.read_bytes()))
    status, out, _ = run(capsys, packed)
    assert status == 0
    assert out.splitlines()[0] == plain.splitlines()[0]
    zstandard = pytest.importorskip("zstandard")
    packed = tmp_path / "s.zst"
    packed.write_bytes(zstandard.compress(snapshot.read_bytes()))
    assert run(capsys, packed)[1].splitlines()[0] == plain.splitlines()[0]


def recording(folder, name, mib):
    recorder = Recorder()
    recorder.alloc("x", mib << 20, stack=[SourceLine("/me/model.py", 3, "make")], kind="parameter")
    save([recorder.run()], folder / name)
    return str(folder / name)


def test_two_recordings_are_compared(tmp_path, capsys):
    before, after = recording(tmp_path, "a.json", 40), recording(tmp_path, "b.json", 60)
    assert main(["compare", before, after]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("20 MiB more at the peak: 40 MiB → 60 MiB allocated, 50 %")
    assert "make /me/model.py:3 make weights 40 MiB 60 MiB" in text
    assert main(["compare", "-f", "json", before, after]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "comparison"
    assert document["comparison"]["memory"]["owners"][0]["after"] == 60 << 20


@pytest.mark.parametrize(("bound", "status"), [("0", 1), ("49", 1), ("60", 0)])
def test_a_gate_on_memory(tmp_path, capsys, bound, status):
    before, after = recording(tmp_path, "a.json", 40), recording(tmp_path, "b.json", 60)
    assert main(["compare", "--fail-on-regression", bound, before, after]) == status
    assert ("memory reserved at the peak, over the limit" in capsys.readouterr().err) is bool(status)
    assert main(["compare", "--fail-on-regression", "0", after, before]) == 0


def test_memory_is_compared_with_memory_alone(tmp_path, capsys):
    before = recording(tmp_path, "a.json", 40)
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    assert main(["compare", before, str(tmp_path / "trace.json")]) == 2
    assert "is not a memory recording" in capsys.readouterr().err
    assert main(["compare", "-f", "html", before, before]) == 0
    assert "Same peak as before: 40 MiB allocated" in capsys.readouterr().out


def test_snapshots_are_recordings_of_memory(tmp_path, capsys, monkeypatch):
    name = str(tmp_path / "a.pickle")
    assert main(["memory", "--export", name, recording(tmp_path, "a.json", 40)]) == 0
    capsys.readouterr()
    assert main(["compare", name, recording(tmp_path, "b.json", 60)]) == 0
    assert "more at the peak" in capsys.readouterr().out
