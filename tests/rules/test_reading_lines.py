"""Reading one line of somebody's code: what is told of it is right, and nothing makes it fail."""

from __future__ import annotations

import ast
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.model import Site, SourceLine, WaitRule
from gapless.rules import match_rule, rules_of_kind
from gapless.rules._code import called_name, keyword, parse_line

PARTS = [
    "loss",
    ".item()",
    "x[mask]",
    " = ",
    "(",
    ")",
    "[",
    "]",
    ":",
    "if ",
    "for i in ",
    "range(",
    ",",
    "'",
    '"',
    "#",
]
PARTS += [
    ".to(device",
    "torch.tensor(",
    "1.0",
    " += ",
    ".cpu()",
    "torch.where(",
    "lambda: ",
    "\\",
    "f'{x}'",
    "é",
    "==",
]
MECHANISMS = ["read", "size", "values", "status", "h2d", "d2h", "explicit", "free"]
OPERATORS = [
    "aten::_local_scalar_dense",
    "aten::index",
    "aten::index_put_",
    "aten::_to_copy",
    "aten::bincount",
]
OPERATORS += [
    "aten::nonzero",
    "aten::_unique2",
    "aten::multinomial",
    "aten::copy_",
    "torch.nn.functional.one_hot",
]
CALLS = [
    "",
    "Tensor.item",
    "Tensor.__bool__",
    "Tensor.__index__",
    "Tensor.__format__",
    "torch.equal",
    "torch.add",
]
DETAILS = ["", "pageable", "pinned", "scalar", "index", "value", "module", "anomaly"]


@pytest.mark.parametrize(
    "line",
    [
        "x = f(a,",
        "loss.item(),",
        '"loss": loss.item(),',
        "if x.any() and (",
        "elif x.any():",
        "for x in y:",
        "with a as b:",
        "def f(x):",
        "return x.item()",
        "x.item())  # comment",
        "**{k: v.item() for k, v in d.items()},",
        "await x.item()",
        "async for x in y:",
        "'(' + x.item()",
    ],
)
def test_a_line_out_of_a_statement_is_read(line: str) -> None:
    assert parse_line(line) is not None


@pytest.mark.parametrize("line", ["", "   ", "# a comment", "x ==== y", "no code at all"])
def test_text_that_is_no_code_is_not_parsed(line: str) -> None:
    assert parse_line(line) is None


def test_texts_and_replacements_are_the_users_own() -> None:
    code = parse_line("total  +=  f(loss.item(), 'é')")
    assert code is not None
    call = code.only_call("item")
    assert call is not None
    assert code.subject(call) == "loss"
    assert code.replace((call, "loss.detach()")) == "total  +=  f(loss.detach(), 'é')"


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("x=x.to(dev); y=y.to(dev)", "x=NEW; y=NEW"),
        ("x = x.to(dev);  y = 1", "x = NEW"),
        ("n = 1; x = x.to(dev);  # both", "n = 1; x = NEW"),
        ("with amp: x=x.to(dev); y=y.to(dev)", "with amp: x=NEW; y=NEW"),
    ],
)
def test_several_statements_in_a_line_stay_apart(line: str, changed: str) -> None:
    code = parse_line(line)
    assert code is not None
    assert code.replace(*((call, "NEW") for call in code.calls("to"))) == changed


def test_only_call_wants_exactly_one() -> None:
    two, single = parse_line("a.item() + b.item()"), parse_line("torch.f(x, dim=0)")
    assert two is not None
    assert single is not None
    assert two.only_call("item") is None
    call = single.only_call("f")
    assert call is not None
    assert called_name(call) == "f"
    value = keyword(call, "dim")
    assert value is not None
    assert single.text(value) == "0"
    assert keyword(call, "missing") is None


def test_long_expressions_are_not_quoted() -> None:
    code = parse_line(f"x = {'a' * 200}.item()")
    assert code is not None
    call = code.only_call("item")
    assert call is not None
    assert code.subject(call) == ""


@given(
    st.lists(st.sampled_from(PARTS), max_size=12).map("".join) | st.text(max_size=40),
    st.sampled_from(OPERATORS),
    st.sampled_from(MECHANISMS),
    st.sampled_from(CALLS),
    st.sampled_from(DETAILS),
    st.sampled_from(["", "IndexBackward0", "IndexPutBackward0"]),
)
def test_any_line_gets_some_advice(
    code: str, operator: str, mechanism: str, call: str, detail: str, node: str
) -> None:
    line = SourceLine(file="/home/me/train.py", line=1, code=code)
    site = Site(
        operator=operator,
        mechanism=mechanism,
        call=call,
        detail=detail,
        stack=(line,),
        node=node,  # type: ignore[arg-type]
    )
    for rule in rules_of_kind(WaitRule):
        text = rule.remedy(site)
        assert text
        assert "\n" not in text
        assert 10 <= len(rule.change_at(site)) <= 80
    assert match_rule(site).code


@given(st.sampled_from(["loss", "a.b", "x[0]", "f(x)", "(a + b)", "x.y(z).w", "self.net(x, y=1)"]))
def test_code_in_the_advice_is_python(subject: str) -> None:
    lines = {
        f"total += {subject}.item()": ("aten::_local_scalar_dense", "read", "Tensor.item", ""),
        f"losses.append({subject}.item())": ("aten::_local_scalar_dense", "read", "Tensor.item", ""),
        f"if {subject}.any():": ("aten::_local_scalar_dense", "read", "Tensor.__bool__", ""),
        f"y = max({subject}, 0.0)": ("aten::_local_scalar_dense", "read", "Tensor.__bool__", ""),
        f"y = {subject}[mask].mean()": ("aten::index", "size", "", ""),
        f"{subject}[mask] = z[mask]": ("aten::index_put_", "size", "", ""),
        f"y = {subject}.to(device)": ("aten::_to_copy", "h2d", "", "pageable"),
        f"y = {subject}.cuda()": ("aten::_to_copy", "h2d", "", "pinned"),
        f"y = {subject}.cpu()": ("aten::_to_copy", "d2h", "", "pageable"),
    }
    for code, (operator, mechanism, call, detail) in lines.items():
        line = SourceLine(file="/home/me/train.py", line=1, code=code)
        site = Site(operator=operator, mechanism=mechanism, call=call, detail=detail, stack=(line,))  # type: ignore[arg-type]
        for quoted in re.findall(r"`([^`]+)`", match_rule(site).remedy(site)):
            assert ast.parse(quoted).body
