"""What the pages on continuous integration and on other tools tell to type is understood."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from gapless.commands import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("docs/ci.md", "docs/integrations.md", ".pre-commit-hooks.yaml")
_CALL = re.compile(r"(?<![\w/.=-])gapless (?:check|show|trace|compare|profile) [^`#|>\n]*")


def calls() -> list[tuple[str, str]]:
    return [
        (page, call.strip())
        for page in PAGES
        if (ROOT / page).is_file()
        for call in _CALL.findall((ROOT / page).read_text(encoding="utf-8"))
    ]


@pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="the pages are not part of an installation")
def test_calls_are_understood():
    parsed_calls = [call for _, call in calls() if not call.endswith(("-f", "gapless check"))]
    assert len(parsed_calls) > 8
    context = click.Context(cli)
    for call in parsed_calls:
        _, name, *words = shlex.split(call)
        command = cli.get_command(context, name)
        assert command is not None
        with command.make_context(name, words) as subcontext:
            assert subcontext.params["form"]


@pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="the pages are not part of an installation")
def test_examples_are_yaml():
    yaml = pytest.importorskip("yaml")
    text = (ROOT / "docs/ci.md").read_text(encoding="utf-8")
    workflow, gitlab, hooks = (
        yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.S)
    )
    assert {"name", "permissions", "jobs"} <= set(workflow)
    assert all(set(step) & {"uses", "run"} for step in workflow["jobs"]["gapless"]["steps"])
    assert gitlab["waits"]["artifacts"]["reports"] == {"junit": "gapless.xml"}
    ours = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    for hook in (*hooks["repos"][0]["hooks"], *ours):
        assert {"id", "name", "entry", "language"} <= set(hook)
        assert hook["pass_filenames"] is False
