"""What a loop never uses, by its source; and all that keeps that from being known."""

from __future__ import annotations

import textwrap

import pytest

from gapless.loading.untouched import find_unused_columns
from gapless.model.source import SourceLine

COLUMNS = ["[0]", "[1]", "[2]"]
KEYS = ["image", "mask", "extra.depth"]


def unused_of(tmp_path, source: str, columns: list[str]) -> tuple[str, ...]:
    """By the line that ends in ``# here``."""
    text = textwrap.dedent(source)
    path = tmp_path / "loop.py"
    path.write_text(text)
    line = next(n for n, row in enumerate(text.splitlines(), 1) if row.endswith("# here"))
    return find_unused_columns(SourceLine(str(path), line, "main", ""), columns)


@pytest.mark.parametrize(
    ("loop", "columns", "unused"),
    [
        ("for x, y, z in loader:  # here\n    f(x, z)", COLUMNS, ("[1]",)),
        ("for i, (x, y, z) in enumerate(loader):  # here\n    f(x)", COLUMNS, ("[1]", "[2]")),
        ("for i, (x, _, z) in tqdm(enumerate(loader)):  # here\n    f(x, z)", COLUMNS, ("[1]",)),
        ("def main():\n    for x, y, z in loader:  # here\n        f(x.to(d), z)", COLUMNS, ("[1]",)),
        ("for batch in loader:  # here\n    f(batch['image'], batch['mask'])", KEYS, ("extra.depth",)),
        ("for batch in loader:  # here\n    x, y, z = batch\n    f(x, y)", COLUMNS, ("[2]",)),
        ("it = iter(loader)\nwhile True:\n    x, y, z = next(it)  # here\n    f(y)", COLUMNS, ("[0]", "[2]")),
        ("for batch in loader:  # here\n    f(batch[0], batch[2])", COLUMNS, ("[1]",)),
    ],
)
def test_what_is_never_used(tmp_path, loop, columns, unused):
    assert unused_of(tmp_path, loop, columns) == unused


@pytest.mark.parametrize(
    "loop",
    [
        "for x, y, z in loader:  # here\n    f(x, y, z)",
        "for batch in loader:  # here\n    f(batch)",
        "for batch in loader:  # here\n    f(**batch)",
        "for batch in loader:  # here\n    f(batch[name])",
        "for batch in loader:  # here\n    f(batch[-1])",
        "for batch in loader:  # here\n    batch = [t.to(d) for t in batch]\n    f(batch[0])",
        "for x, *rest in loader:  # here\n    f(x)",
        "for (x, y, z), w in zip(loader, other):  # here\n    f(x)",
        "for x, y, z in loader:  # here\n    f(**locals())",
        "for x, y, z in loader:  # here\n    g = lambda: (x, y, z)",
        "for x, (y, w), z in loader:  # here\n    f(x, z)",
        "model.fit(loader)  # here",
        "for batch in loader:  # here\n    pass",
    ],
)
def test_where_it_cannot_be_known_or_all_is_used(tmp_path, loop):
    assert unused_of(tmp_path, loop, COLUMNS) == ()


def test_without_its_source():
    assert find_unused_columns(None, COLUMNS) == ()
    assert find_unused_columns(SourceLine("/nowhere.py", 3, "", ""), COLUMNS) == ()
