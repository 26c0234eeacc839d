"""What a library runs without a package, read from the module that looked for it."""

from __future__ import annotations

import linecache

import pytest

from gapless.emulation.standins.fallbacks import find_fallbacks
from gapless.emulation.standins.package_requests import RefusedImport
from gapless.model import SourceLine

FILE = "/x/site-packages/lib/norms.py"
HANDLED = """
try:
    import amp_C
    norm = amp_C.multi_tensor_l2norm
    HAVE = True
except ImportError:
    from lib.local import local_norm, other as renamed
    norm = slow_norm
    HAVE = False
"""
BRANCHES = """
def total(x):
    if HAVE:
        return fast(x)
    a = slow(x)
    return a


def both(x):
    if not HAVE:
        return slow(x)
    else:
        return fast(x)


def third(x):
    if HAVE:
        y = fast(x)
    else:
        y = slow(x)
    return y
"""
PROBED = """
FOUND = find("apex") is not None


def is_there():
    return find("apex")


def norm(x):
    if is_there():
        return fast(x)
    return slow(x)
"""


def read(text: str, marker: str):
    """Return the fallbacks of module `text` whose line with `marker` asks for the package."""
    linecache.cache[FILE] = (len(text), None, text.splitlines(True), FILE)
    from gapless.emulation.standins import guards

    guards.parse_source.cache_clear()
    line = next(n for n, row in enumerate(text.splitlines(), 1) if marker in row)
    return find_fallbacks([RefusedImport("apex", "lib", "lib.norms", FILE, line)])


def frame(line: int = 0, function: str = "f", library: str = "lib", file: str = FILE) -> SourceLine:
    return SourceLine(file, line, function, "", library)


def test_functions_in_place_of_the_packages() -> None:
    (fallback,) = read(HANDLED, "import amp_C")
    assert (fallback.library, fallback.package) == ("lib", "apex")
    assert fallback.functions == ("local_norm", "other", "slow_norm")
    assert fallback.runs(frame(3, "local_norm", file="/x/site-packages/lib/local.py"))
    assert not fallback.runs(frame(3, "local_norm", library="elsewhere", file="/y/b.py"))
    assert not fallback.runs(frame(3, "total"))


@pytest.mark.parametrize(
    ("code", "runs"), [("slow(x)", True), ("fast(x)", False), ("return a", True), ("return y", False)]
)
def test_branches_on_what_the_handler_sets(code: str, runs: bool) -> None:
    text = HANDLED + BRANCHES
    (fallback,) = read(text, "import amp_C")
    rows = [n for n, row in enumerate(text.splitlines(), 1) if row.endswith(code)]
    assert rows
    assert all(fallback.runs(frame(n)) is runs for n in rows)


def test_branches_on_the_answer_to_a_question() -> None:
    (fallback,) = read(PROBED, "return find(")
    assert fallback.lines == ((12, 12),)


def test_nothing_where_the_source_does_not_show_it() -> None:
    assert read("import amp_C\n", "import amp_C") == ()
    assert find_fallbacks([RefusedImport("apex", "lib", "lib.gone", "/no/such/file.py", 1)]) == ()
