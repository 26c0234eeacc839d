"""The pages of the documentation, as the tests see them."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

PROJECT = Path(__file__).resolve().parents[2]
PAGES = {
    "README": PROJECT / "README.md",
    **{
        path.relative_to(PROJECT / "docs").with_suffix("").as_posix().replace("/", "_"): path
        for path in sorted((PROJECT / "docs").rglob("*.md"))
    },
}
"""By the name that a page's preamble has."""

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```", re.M | re.S)


def blocks(page: Path, *languages: str) -> list[tuple[int, str]]:
    """Line number and code of each fenced block of `page` in one of `languages` ("" for none)."""
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, fence.start("code")) + 1, fence["code"])
        for fence in _FENCE.finditer(text)
        if fence["language"] in languages
    ]


def tool(name: str) -> ModuleType:
    """The module `name` of the project's tools."""
    folder = str(PROJECT / "tools")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)
