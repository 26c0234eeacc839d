from __future__ import annotations

import pytest

from gapless.model.wording import size
from gapless.render import Style


@pytest.mark.parametrize(
    ("folder", "file", "shown"),
    [
        ("/work", "/work/a/b.py", "a/b.py"),
        ("/work", "/working/b.py", "/working/b.py"),
        ("/work", "b.py", "b.py"),
        ("", "/work/b.py", "/work/b.py"),
        ("/work", "<string>", "<string>"),
    ],
)
def test_paths_are_shown_from_the_folder(folder, file, shown):
    assert Style(folder=folder).path(file) == shown


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1_500_000, "1.5 MB"),
        (2 * 10**9, "2 GB"),
        (10**16, "10,000 TB"),
    ],
)
def test_size(nbytes, text):
    assert size(nbytes) == text
