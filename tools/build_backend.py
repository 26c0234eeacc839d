"""setuptools, and a README for package indexes: outside of the repository its relative links lead nowhere.

The long description is `build/README.md`, made of README.md whenever the package is built: a relative link
becomes one into the repository that `[project.urls]` names as Source, and its bare text where none is named.
"""

from __future__ import annotations

import re
from pathlib import Path

from setuptools.build_meta import *  # noqa: F403  # the hooks that installers call

PROJECT = Path(__file__).resolve().parents[1]
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?![a-z]+:|#)(?P<path>[^)]+)\)")
_MARK = re.compile(r"^<!-- .*? -->\n", re.MULTILINE)


def long_description(readme: str, source: str = "") -> str:
    """Return `readme` with relative links made absolute; `source` is the repository's address.

    >>> long_description("see [docs](docs/a.md)")
    'see docs'
    >>> long_description("see [docs](docs/a.md)", "https://example.org/x")
    'see [docs](https://example.org/x/blob/main/docs/a.md)'
    """

    def absolute(match: re.Match[str]) -> str:
        return f"[{match['text']}]({source}/blob/main/{match['path']})" if source else match["text"]

    parts = _FENCED.split(_MARK.sub("", readme))
    return "".join(part if part.startswith("```") else _LINK.sub(absolute, part) for part in parts)


def source_address(pyproject: str) -> str:
    """Return the address that `[project.urls]` names as Source, or ""."""
    match = re.search(r'^\[project\.urls\]\n(?:[^\[\n].*\n)*?Source = "([^"]+)"', pyproject, re.MULTILINE)
    return match[1].rstrip("/") if match else ""


def _write() -> None:
    target = PROJECT / "build" / "README.md"
    target.parent.mkdir(exist_ok=True)
    source = source_address((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    target.write_text(
        long_description((PROJECT / "README.md").read_text(encoding="utf-8"), source), encoding="utf-8"
    )


_write()
