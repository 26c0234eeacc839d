"""Edits of bytes: what they leave alone, and what they refuse."""

from __future__ import annotations

import codecs
import random

import pytest

from gapless.model.fix import Edit, apply_edits

SOURCE = 'gerät = "ä"\r\n\tx = y.cuda()  # größer\r\n'


@pytest.mark.parametrize(
    ("head", "encoding"), [("", "utf-8"), ("# coding: latin-1\r\n", "latin-1"), ("\ufeff", "utf-8")]
)
def test_text_is_written_in_the_encoding_of_the_file(head: str, encoding: str) -> None:
    text = head + SOURCE
    data = text.encode(encoding)
    start = data.index(b"y.cuda")
    edited = apply_edits(data, [Edit("a.py", start, start + 1, "gerät")])
    assert edited.decode(encoding) == text.replace("y.cuda", "gerät.cuda")
    assert edited.startswith(codecs.BOM_UTF8) == (head == "\ufeff")


def test_edits_apply_in_any_order_and_each_once() -> None:
    edits = [
        Edit("a.py", 0, 0, "# new\n"),
        Edit("a.py", 0, 1, "b"),
        Edit("a.py", 4, 5, "2"),
        Edit("a.py", 5, 5, "3"),
    ]
    for seed in range(4):
        shuffled = random.Random(seed).sample(edits * 2, 8)
        assert apply_edits(b"a = 1\n", shuffled) == b"# new\nb = 23\n"


@pytest.mark.parametrize("span", [(1, 3), (2, 4), (6, 9), (-1, 0)])
def test_edits_that_overlap_or_lie_outside_are_refused(span: tuple[int, int]) -> None:
    first, second = Edit("a.py", 0, 3, "x"), Edit("a.py", *span, "y")
    with pytest.raises(ValueError, match=r"overlap in a\.py"):
        apply_edits(b"a = 1\n", [first, second])


def test_two_insertions_do_not_overlap() -> None:
    assert not Edit("a.py", 3, 3, "x").overlaps(Edit("a.py", 3, 3, "y"))
    assert not Edit("a.py", 0, 3, "x").overlaps(Edit("a.py", 3, 4, "y"))
    assert not Edit("a.py", 0, 3, "x").overlaps(Edit("b.py", 0, 3, "y"))
