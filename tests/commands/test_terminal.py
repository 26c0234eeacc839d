"""What is the same over all commands: help, completion, characters, widths, formats of a saved run."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from commands.on_a_terminal import COLOR, lines, run
from rich.cells import cell_len
from sessions import CODE, MAIN, Simulation
from trace_builder import training

from gapless.commands import cli, main
from gapless.model.session import save
from gapless.render import alone, formats

COMMANDS = cli.list_commands(click.Context(cli))


def command(name: str) -> click.Command:
    subcommand = cli.get_command(click.Context(cli), name)
    assert subcommand is not None
    return subcommand


def help_of(*words: str) -> str:
    out = CliRunner().invoke(cli, [*words, "--help"], prog_name="gapless", terminal_width=80).output
    assert out.startswith("Usage: gapless")
    return out


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_and_fits(name):
    text = help_of(name)
    assert f"gapless {name}" in text.split("Example", 1)[1]
    assert text.isascii()
    assert [line for line in text.splitlines() if len(line) > 80] == []


def test_the_help_of_all():
    text = help_of()
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert text.isascii()


@pytest.mark.parametrize("name", COMMANDS)
def test_options_mean_the_same_everywhere(name):
    options = {option: param for param in command(name).params for option in param.opts}
    assert "--no-color" in options or "-f" not in options
    expected = {"-q": "--quiet", "-v": "--verbose", "-f": "--format", "-o": "--output", "-j": "--jobs"}
    for short, long in expected.items():
        if short in options:
            assert options[short] is options[long]
    for option, said in (
        ("-q", "No progress on standard error."),
        ("--no-color", "Plain text; the NO_COLOR"),
    ):
        if option in options:
            assert options[option].help.startswith(said)


def completions(*words: str) -> list[tuple[str, str]]:
    completer = ShellComplete(cli, {}, "gapless", "_GAPLESS_COMPLETE")
    return [
        (completion.type, completion.value)
        for completion in completer.get_completions(list(words[:-1]), words[-1])
    ]


def test_completion():
    assert completions("tr") == [("plain", "trace")]
    assert [value for _, value in completions("show", "-f", "")] == list(formats())
    assert ("plain", "--max-waits") in completions("check", "--m")
    assert completions("check", "train") == [("file", "train")]
    assert completions("show", "") == [("file", "")]
    assert completions("trace", "-o", "p") == [("file", "p")]
    assert completions("profile", "-o", "p") == [("dir", "p")]
    assert ("plain", "GAP112") in completions("rule", "gap11")
    assert ("plain", "GAP101,GAP112") in completions("check", "--fail-on", "GAP101,GAP11")
    assert completions("schema", "mem") == [("plain", "memory")]
    assert ("plain", "h100-pcie") in completions("check", "--gpu", "H1")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_can_ask(python, shell):
    process = python("-m", "gapless", _GAPLESS_COMPLETE=f"{shell}_source")
    assert process.returncode == 0, process.stderr
    assert "_gapless_completion" in process.stdout


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of a script whose name is no ASCII."""
    run = Simulation(code={**CODE, 70: "print('Verlust μ', loss.item())"}, outer=MAIN)
    for _ in range(6):
        run.wait(70)
        run.step(95)
    path = tmp_path / "läufe.gapless.json"
    save(run.session(notes=("Größe …",)), path)
    monkeypatch.chdir(tmp_path)
    return path


@pytest.mark.parametrize("form", formats())
@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_saved_run_in_every_format_and_encoding(saved, python, form, encoding):
    process = python("-m", "gapless", "show", "-f", form, saved.name, PYTHONIOENCODING=encoding)
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    if encoding == "ascii":
        assert process.stdout.isascii() or form == "html"  # a page says itself that it is UTF-8
    else:
        escaped = [write(word)[1:-1] for word in ("läufe", "Größe", "…") for write in (ascii, json.dumps)]
        assert not [word for word in escaped if word in process.stdout]
    assert "\x1b" not in process.stdout
    assert "train.py" in process.stdout
    if form in ("json", "sarif"):
        json.loads(process.stdout)
    elif form == "junit":
        ElementTree.fromstring(process.stdout)
    elif form == "text":
        assert all(len(line) <= 80 for line in process.stdout.splitlines())


def test_an_error_about_a_name_that_is_no_ascii(python):
    process = python("-m", "gapless", "show", "fehlt-é.json", PYTHONIOENCODING="ascii", LC_ALL="C")
    assert process.returncode == 3
    assert "Traceback" not in process.stderr
    assert process.stderr.startswith("gapless: cannot read fehlt-")


def test_piped_output_does_not_depend_on_the_terminal(saved, python):
    outputs = {
        python("-m", "gapless", "show", saved.name, COLUMNS=columns, TERM=term).stdout
        for columns, term in (("40", "xterm-256color"), ("200", "dumb"))
    }
    assert len(outputs) == 1


def test_show_writes_one_document(saved, capsys):
    assert main(["show", "-f", "sarif", saved.name]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 1


def test_documents_stand_alone(fake_gapless, write):
    """What the script prints does not stand in a document; it is not lost either."""
    write("train.py", "print('by the script')\n")
    assert {"sarif", "junit", "markdown"} <= set(filter(alone, formats()))
    for form in filter(alone, formats()):
        process = fake_gapless("check", "-q", "-f", form, "train.py")
        assert "by the script" not in process.stdout
        assert "by the script" in process.stderr
        if form == "sarif":
            assert json.loads(process.stdout)["version"] == "2.1.0"
    process = fake_gapless("check", "-q", "-f", "github", "train.py")
    assert "by the script" in process.stdout
    assert "::notice title=Gapless::" in process.stdout


PROGRAM = """
from gapless.commands import main

for words in {commands!r}:
    assert main(words) == 0, words
"""
SAVED = "läufe.gapless.json"


@pytest.fixture
def trace_beside(saved: Path) -> Path:
    """A trace, too, in the folder of the saved run."""
    training(steps=4).write(saved.parent / "trace.json")
    return saved.parent


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_everything_fits_the_terminal(trace_beside, columns):
    commands = [
        ["rule"],
        ["schema"],
        ["show", "--all", "-v", SAVED],
        ["compare", SAVED, SAVED],
        ["trace", "--all", "trace.json"],
        ["compare", "trace.json", "trace.json"],
    ]
    written = run(PROGRAM.format(commands=commands), columns=columns, folder=trace_beside)
    assert COLOR.search(written)
    assert "train.py:70" in written
    assert [line for line in lines(written) if cell_len(line) > columns] == []


@pytest.mark.parametrize(
    ("words", "environment"),
    [((), {"NO_COLOR": "1"}), (("--no-color",), {}), ((), {"TERM": "dumb"})],
    ids=["NO_COLOR", "--no-color", "dumb"],
)
def test_without_colour_there_is_none_in_the_bar_either(trace_beside, words, environment):
    commands = [
        ["show", *words, SAVED],
        ["rule", *words, "GAP140"],
        ["trace", *words, "trace.json"],
        ["compare", *words, "trace.json", "trace.json"],
    ]
    written = run(PROGRAM.format(commands=commands), columns=80, folder=trace_beside, **environment)
    assert not COLOR.search(written)
    assert ("gapless: reading" in written) is (environment.get("TERM") != "dumb")


def test_the_names_of_files_in_errors_do_not_steer_the_terminal(tmp_path):
    program = PROGRAM.format(commands=[]) + "assert main(['show', '\\x1b[2Jno\\n::error::']) == 3"
    written = run(program, columns=80, folder=tmp_path)
    assert "\x1b" not in written
    assert written.startswith("gapless: cannot read \\x1b[2Jno")
    assert all(line.startswith("gapless: ") for line in lines(written)[:-1])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's full device")
@pytest.mark.parametrize(
    "words", [("rule",), ("--help",), ("schema", "report"), ("show", "läufe.gapless.json")]
)
def test_standard_output_that_is_closed_or_full(saved, python, words):
    closing = (
        "import os, subprocess, sys\n"
        "words = sys.argv[1:]\n"
        "start = [sys.executable, '-m', 'gapless', *words]\n"
        "shut = subprocess.run(start, stderr=subprocess.PIPE, preexec_fn=lambda: os.close(1))\n"
        "with open('/dev/full', 'w') as full:\n"
        "    burst = subprocess.run(start, stdout=full, stderr=subprocess.PIPE)\n"
        "print(shut.returncode, shut.stderr, burst.returncode, burst.stderr.count(b'\\n'))\n"
    )
    assert python("-c", closing, *words).stdout == "0 b'' 3 1\n"
