"""The command line around the commands."""

from __future__ import annotations

import io
import json

import pytest

from gapless.capture.target import Target
from gapless.commands import main
from gapless.commands._progress import Progress
from gapless.commands.check import OPTIONS
from gapless.model import Event, Session, Site, SourceLine, StepMark
from gapless.model.session import save
from gapless.rules import all_rules


def run(capsys, *words: str) -> tuple[int, str, str]:
    status = main(words)
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize("words", [("--help",), ("check", "--help"), ("show", "-h"), ("rule", "--help")])
def test_help_teaches_by_example(words, capsys):
    status, out, _ = run(capsys, *words)
    assert status == 0
    assert f"gapless {words[0] if len(words) > 1 else 'check'} " in out.split("Options:")[0].split("\n", 1)[1]


def test_version(capsys):
    import gapless

    assert run(capsys, "--version") == (0, f"gapless {gapless.__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("chekc",), "no command 'chekc' (did you mean check?)"),
        (("train.py",), "train.py is not a command: gapless check train.py"),
        (("check", "--stepz", "3", "a.py"), "No such option"),
        (("check", "--steps", "none", "a.py"), "'none' is neither a positive number nor 'all'"),
        (("check", "--steps", "0", "a.py"), "'0' is neither a positive number nor 'all'"),
        (("check", "--devices", "0", "a.py"), "--devices"),
        (("check", "--max-waits", "-1", "a.py"), "--max-waits"),
        (("check", "--fail-on", "GAP12,XYZ", "a.py"), "no rule code starts with 'XYZ'"),
        (("check",), "no script given. Example: gapless check train.py"),
        (("check", "-f", "yaml", "a.py"), "yaml"),
        (("rule", "GAP999"), "no rule 'GAP999'"),
        (("show",), "SESSION"),
    ],
)
def test_usage_errors_are_short_and_leave_with_2(words, message, capsys):
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("trian.py", "gapless: no such file: trian.py (did you mean train.py?)\n"),
        ("lib/hlper.py", "gapless: no such file: lib/hlper.py (did you mean lib/helper.py?)\n"),
        ("no/a.py", "gapless: no such file: no/a.py (there is no folder no)\n"),
        ("lib", "gapless: lib is a folder without a __main__.py: name a script in it\n"),
        ("lib.helper", "gapless: no such file: lib.helper (run a module with -m lib.helper)\n"),
        ("zzz", "gapless: no such file: zzz\n"),
    ],
)
def test_a_missing_script(name, message, write, tmp_path, monkeypatch, capsys):
    write("train.py", "")
    write("lib/helper.py", "")
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "check", name) == (2, "", message)


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        ("python train.py --lr 1", "(without it: gapless check train.py --lr 1)"),
        ("python3.12 -m lib.helper", "(without it: gapless check -m lib.helper)"),
        (
            "torchrun --nproc-per-node 2 train.py --lr 1",
            "torchrun --nproc-per-node 2 -m gapless check train.py --lr 1)",
        ),
        ("accelerate launch train.py", "accelerate launch -m gapless check train.py)"),
        ("deepspeed train.py", "deepspeed --module gapless check train.py)"),
        ("torchrun", "torchrun -m gapless check)"),
    ],
)
def test_what_starts_scripts_is_no_script(words, instead, write, tmp_path, monkeypatch, capsys):
    write("train.py", "")
    monkeypatch.chdir(tmp_path)
    status, out, err = run(capsys, "check", *words.split())
    assert (status, out) == (2, "")
    assert err.startswith(f"gapless: no such file: {words.split()[0]} (")
    assert err.rstrip().endswith(instead)


def test_a_notebook_is_no_script(write, capsys):
    status, _, err = run(capsys, "check", str(write("train.ipynb", "{}")))
    assert status == 2
    assert "train.ipynb is a notebook: run its cells under `%load_ext gapless`" in err


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("", ["--gpu=h100", "--dry", "--lr", "1"], ["--gpu", "--dry"]),
        ("import sys\nassert sys.argv[1]\n", ["--memory"], ["--memory"]),
        ("ask('--gpu')\n", ["--gpu", "1"], []),
        ("ask(world_size=int)\n", ["--world-size", "2"], []),
        ("", ["--lr", "1", "gpu", "-f"], []),
    ],
)
def test_misplaced_options_after_the_script_are_reported(text, words, message, write):
    assert Target(str(write("train.py", text)), tuple(words)).find_misplaced_options(OPTIONS) == message


def test_what_a_module_is_given_is_its_own():
    assert Target("train", ("--gpu", "h100"), module=True).find_misplaced_options(OPTIONS) == []


@pytest.mark.parametrize(
    ("words", "verb"), [(["--gpu"], "--gpu is"), (["--gpu", "--dry"], "--gpu, --dry are")]
)
def test_errors_are_reported_before_the_script_runs(words, verb):
    said = io.StringIO()
    Progress(said, 12).warn_misplaced_options(words, "train.py")
    assert said.getvalue() == (
        f"gapless: {verb} passed to train.py: options of Gapless come before the script\n"
    )


def test_rules_are_listed_and_explained(capsys):
    status, out, _ = run(capsys, "rule")
    assert status == 0
    assert [row.split()[0] for row in out.splitlines()] == [rule.code for rule in all_rules()]
    _, some, _ = run(capsys, "rule", "gap10")
    assert [row.split()[0][:5] for row in some.splitlines()] == ["GAP10"] * len(some.splitlines())
    by_code, by_name = run(capsys, "rule", "gap110"), run(capsys, "rule", "nonzero")
    assert by_code == by_name
    assert by_code[1].startswith("GAP110 nonzero\n")
    for section in ("What waits", "Why it costs", "Example", "Use instead", "When it is fine"):
        assert f"\n\n{section}\n" in by_code[1]
    assert "```" not in by_code[1]


def test_every_rule_can_be_explained(capsys):
    for rule in all_rules():
        status, out, _ = run(capsys, "rule", rule.code)
        assert status == 0
        assert out.startswith(f"{rule.code} {rule.name}\n")


def test_show(tmp_path, capsys):
    at = (SourceLine("/nowhere/train.py", 7, "train", "loss.item()"),)
    session = Session(
        script=("train.py",),
        sites=(Site(operator="aten::_local_scalar_dense", mechanism="read", call="Tensor.item", stack=at),),
        events=tuple(Event(site=0, tick=tick) for tick in range(12)),
        marks=tuple(StepMark(kind="optimizer", tick=tick, time=0.0, name="SGD.step#0") for tick in range(12)),
    )
    path = str(tmp_path / "run.gapless.json")
    save(session, path)
    status, out, err = run(capsys, "show", path)
    assert (status, err) == (0, "")
    assert out.startswith("1 sync in every step.\n")
    assert "train.py · 10 steady steps, each ending with SGD.step\n" in out
    assert "/nowhere/train.py:7 in train\n  │ loss.item()\n" in out
    status, out, _ = run(capsys, "show", "-f", "json", path)
    assert json.loads(out)["steps"]["waits_per_step"] == 1


def test_show_of_what_is_no_session(tmp_path, capsys):
    path = tmp_path / "events.json"
    path.write_text('{"events": []}')
    status, out, err = run(capsys, "show", str(path))
    assert (status, out) == (3, "")
    assert err.startswith(f"gapless: {path} is JSON but not a saved session")
    assert run(capsys, "show", str(tmp_path / "no.json"))[0] == 3


def test_a_reader_that_leaves_early(python):
    process = python(
        "-c",
        "import subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-m', 'gapless', 'rule'], stdout=subprocess.PIPE,"
        " stderr=subprocess.PIPE)\n"
        "p.stdout.close()\n"
        "print(p.stderr.read(), p.wait())\n",
    )
    assert process.stdout == "b'' 0\n"
