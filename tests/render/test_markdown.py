"""The report as Markdown, read by a parser."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from markdown_it import MarkdownIt
from markdown_it.token import Token
from render.reports import HOSTILE, hostile, names, of_profile
from sessions import example

from gapless.model import RankSummary, Report, Verdict
from gapless.model.verdict import Change
from gapless.render import Style, renderer
from gapless.render.markdown import code, text

STYLE = Style(folder="/work")
TAGS = {"<details>", "<summary>", "</summary>", "</details>", "<code>", "</code>"}


def parsed(source: str) -> Iterator[Token]:
    for token in MarkdownIt("commonmark").enable("table").parse(source):
        yield token
        yield from token.children or ()


def shown(source: str) -> str:
    """What a reader sees of one paragraph."""
    tokens = [token for token in parsed(source) if token.type in ("text", "code_inline", "text_special")]
    return "".join(token.content for token in tokens)


def tags(source: str) -> set[str]:
    html = "".join(token.content for token in parsed(source) if token.type.startswith("html"))
    return set(re.findall(r"<[^>]*>", html))


def test_the_example():
    output = renderer("markdown")(example(), STYLE)
    lines = output.splitlines()
    assert lines[0].startswith("### 3 to 4 syncs in every step")
    assert "| ⚠️ | GAP141 torchmetrics-nan-check | `train.py:50` | 2× in every step |" in lines
    assert "|  | GAP120 pageable-copy | `train.py:5` | 60× in set-up |" in lines
    assert "- waits: Tensor.\\_\\_bool\\_\\_" not in output
    assert '- instead: `nan_strategy="disable"`' in lines
    assert "- torch.compile ran eagerly" in lines
    assert sum(token.type == "tr_open" for token in parsed(output)) == 1 + 5 + 1 + 2
    assert tags(output) == {"<details>", "<summary>", "</summary>", "</details>"}


def test_details_name_code_and_frames():
    output = renderer("markdown")(example(), STYLE)
    assert "- through: `torchmetrics/metric.py:560`" in output
    assert "```python\nprint('loss', loss.item())\n```\n" in output


@settings(deadline=None, max_examples=40)
@given(names)
def test_text_is_shown_as_it_is(name):
    plain = re.sub(r"\s", "", shown(f"x {text(name)} y"))
    assert "@" not in text(name).replace("&#64;", "")
    assert not tags(f"x {text(name)} y") - {"<code>", "</code>"}
    if "`" not in name and len(name) < 2000 and name.isprintable():
        assert plain == "x" + re.sub(r"\s", "", name) + "y"


@settings(deadline=None, max_examples=40)
@given(names)
def test_code_is_shown_as_it_is(name):
    source = f"| a |\n|---|\n| {code(name)} |\n"
    cells = [token for token in parsed(source) if token.type == "td_open"]
    assert len(cells) == 1
    if name.isprintable() and len(name) < 2000:
        body = source.splitlines()[2]
        contents = [
            token.content for token in parsed(f"{body[2:-2]}") if token.type != "inline" and token.content
        ]
        assert "".join(part for part in contents if part not in ("<code>", "</code>")).strip() == name.strip()


@settings(deadline=None, max_examples=40)
@given(names)
def test_hostile_names(name):
    text = renderer("markdown")(hostile(name), STYLE)
    text.encode()
    assert tags(text) <= TAGS
    tokens = [token.type for token in parsed(text)]
    assert tokens.count("td_open") == 4 * 6 + 3
    assert tokens.count("heading_open") == 1
    assert tokens.count("fence") == 5
    assert not {"link_open", "image", "blockquote_open", "code_block"} & set(tokens)


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_it_stays_short(number):
    report = hostile(HOSTILE[number])
    many = msgspec.structs.replace(report, findings=report.findings * 40)
    assert len(renderer("markdown")(many, STYLE)) < 1 << 20


def test_a_profile_with_ranks():
    ranks = tuple(RankSummary(rank=n, step=1e6, idle=2e5, communication=1e5, late=n * 1e3) for n in range(30))
    output = renderer("markdown")(of_profile(ranks=ranks), STYLE)
    assert "| 29 | 1 ms | 20 % | 10 % | 29 µs |" in output
    assert "… and 22 ranks that arrive earlier" in output


def test_ascii_and_nothing():
    assert renderer("markdown")(example(), Style(unicode=False)).isascii()
    assert renderer("markdown")(Report(verdict=Verdict(sentence="No waits")), Style()) == "### No waits.\n"


def test_a_change_says_what_is_known_of_it():
    todo = (
        Change(what="launch less", before=8e6, after=2e6),
        Change(what="look again", place="aten::mm"),
        Change(what="rest"),
    )
    output = renderer("markdown")(Report(verdict=Verdict(sentence="x", do_first=todo)), STYLE)
    assert "1. launch less · **8 → 2 ms**\n2. look again · `aten::mm`\n3. rest\n" in output
