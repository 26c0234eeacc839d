"""The samples of the documentation run, and its command lines name commands and options that exist."""

from __future__ import annotations

import ast
import contextlib
import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from docs.pages import PAGES, blocks

import gapless
from gapless.commands import cli

PREAMBLES = Path(__file__).parent / "preambles"
NOT_RUN = {
    "gapless.profile(": "needs a GPU",
    "gapless.memory_snapshot(": "needs a GPU",
    "WandB(run)": "needs the trackers' packages",
    "GaplessCallback(": "needs a trainer, and a GPU",
    "Prover(": "runs a training script, in processes of its own",
    "trackers.log(report": "needs a tracker",
    "gapless.loading.diagnose(": "measures for as long as it is told",
}
"""Blocks with these words are compiled, and their names of Gapless looked up; why they do not run."""
OWN_DEVICE = ("gapless.emulate(", "gapless.compare(")
"""Pages with these words in a sample bring their own emulated device."""

WITH_PYTHON = [name for name, path in PAGES.items() if blocks(path, "python")]


@pytest.mark.parametrize("name", WITH_PYTHON)
def test_the_samples_of_a_page_run_one_after_the_other(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    preamble = PREAMBLES / f"{name}.py"
    names: dict[str, Any] = {"__name__": "__main__"}
    samples = blocks(PAGES[name], "python")
    own = any(words in code for _, code in samples for words in OWN_DEVICE)
    with contextlib.nullcontext() if own else gapless.emulate("A100"):
        if preamble.exists():
            exec(compile(preamble.read_text(encoding="utf-8"), str(preamble), "exec"), names)
        for line, code in samples:
            if code.startswith("%"):
                continue  # of a notebook
            program = compile("\n" * (line - 1) + code, str(PAGES[name]), "exec")
            if any(words in code for words in NOT_RUN):
                check_names(code)
                continue
            try:
                exec(program, names)
            except NameError as error:
                pytest.fail(
                    f"{PAGES[name]}:{line}: {error}; tests/docs/preambles/{name}.py can say what it is"
                )


def check_names(code: str) -> None:
    """Fail where a name of Gapless in `code` does not exist."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gapless"):
            module = importlib.import_module(node.module or "")
            missing = [name.name for name in node.names if not hasattr(module, name.name)]
            assert not missing, f"{node.module} has no {missing}"
        elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith("gapless."):
            value: Any = gapless
            for part in ast.unparse(node).split(".")[1:]:
                value = getattr(value, part)


COMMAND = re.compile(r"^(?:\$ )?(?:torchrun .*-m )?(gapless(?: +[^ #…][^#…]*)?)", re.MULTILINE)
KEPT_APART = re.compile(r"\s{2,}| \| | > | && |;|\s+#")


def command_lines(path: Path) -> list[tuple[int, str]]:
    """The lines of `path` that run ``gapless``, with their numbers, without what is said beside them."""
    lines = []
    for first, code in blocks(path, "", "text", "console", "bash", "shell", "sh", "yaml"):
        for number, line in enumerate(code.split("\n"), first):
            match = COMMAND.match(line.strip().removeprefix("- run: "))
            if match and not re.match(r"gapless(:| rule GAP\d+ explains)", match[1]):
                lines.append((number, KEPT_APART.split(match[1])[0].strip()))
    return lines


WITH_COMMANDS = [name for name, path in PAGES.items() if command_lines(path)]


@pytest.mark.parametrize("name", WITH_COMMANDS)
def test_command_lines_name_commands_and_options_that_exist(name: str) -> None:
    for number, line in command_lines(PAGES[name]):
        words = shlex.split(line)[1:]
        place = f"{PAGES[name]}:{number}: {line}"
        if not words or words[0].isupper():  # `gapless COMMAND`
            continue
        if words[0].startswith("-"):
            assert words[0] in ("--version", "--help", "-h"), place
            continue
        context = click.Context(cli, info_name="gapless")
        command = cli.get_command(context, words[0])
        assert command is not None, f"{place}: no such command"
        _parse(command, words[1:], place)


def _parse(command: click.Command, words: list[str], place: str) -> None:
    """Refuse options of `words` that `command` has not; arguments in capitals stand for any."""
    if (
        any(word.isupper() and not word.startswith("-") for word in words)
        or "-h" in words
        or "--help" in words
    ):
        params = {
            option for parameter in command.params for option in parameter.opts + parameter.secondary_opts
        }
        unknown = [word for word in words if word.startswith("-") and word.split("=")[0] not in params]
        assert not unknown or command.name in ("check", "profile"), f"{place}: no option {unknown}"
        return
    try:
        command.make_context(str(command.name), list(words), resilient_parsing=False)
    except click.UsageError as error:
        pytest.fail(f"{place}: {error.message}")
