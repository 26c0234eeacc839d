"""The line within a function, told from its source."""

from __future__ import annotations

import pytest

from gapless.analyze.profile.source_lines import with_source_lines
from gapless.model import Cost, Profile, Site, SourceLine
from gapless.model.profile import LineTime, Recording

SOURCE = """\
import torch

def helper(x):
    return x.sum()

@torch.no_grad()
def train(model, batch):
    out = model(batch)
    loss = helper(out)
    print(loss.item())
    selected = out[batch > 0]
    out[batch > 0] = 1
    fixed = out[0]
    if loss:
        first = out.nonzero()
    again = out.nonzero()

    def inner(x):
        return x.item()

    return inner
"""
HELPER = SourceLine("train.py", 3, "helper")
TRAIN = SourceLine("train.py", 6, "train")  # the line of its first decorator
LIBRARY = SourceLine("torch/nn/modules/module.py", 1743, "_call_impl", library="torch")


def resolved_site(site: Site, source: str = SOURCE, stacks: str = "frames") -> Site:
    profile = Profile(
        costs=(Cost(cause="wait", site=site),),
        lines=(LineTime(site=site, total=1, kernels=1),),
        recording=Recording(stacks=stacks),  # type: ignore[arg-type]
    )
    source_lines = with_source_lines(profile, lambda file: source if file == "train.py" else "")
    assert source_lines.lines[0].site == source_lines.costs[0].site
    return source_lines.costs[0].site


def wait(operator: str, call: str = "", *stack: SourceLine) -> Site:
    return Site(operator=operator, mechanism="read", call=call, stack=stack or (TRAIN,))


@pytest.mark.parametrize(
    ("site", "line", "code"),
    [
        (wait("aten::_local_scalar_dense", "Tensor.item"), 10, "print(loss.item())"),
        (wait("aten::_local_scalar_dense", "Tensor.__bool__"), 14, "if loss:"),
        (wait("aten::index"), 11, "selected = out[batch > 0]"),
        (wait("aten::index_put_"), 12, "out[batch > 0] = 1"),
        (wait("aten::sum", "Tensor.sum", HELPER, TRAIN), 4, "return x.sum()"),
        (
            wait("aten::sum", "", SourceLine("lib/x.py", 1, "helper", library="lib"), TRAIN),
            9,
            "loss = helper(out)",
        ),
    ],
)
def test_one_line_can_be_the_call(site, line, code):
    assert (resolved_site(site).line.line, resolved_site(site).line.code) == (line, code)


@pytest.mark.parametrize(
    "site",
    [
        wait("aten::nonzero", "Tensor.nonzero"),  # two lines call it
        wait("aten::sum", "", HELPER),  # a method would have been recorded: something else did it
        wait("aten::add"),  # none does
        wait("aten::mm", "", LIBRARY, TRAIN),  # modules are called by other names
        wait("aten::index", "", SourceLine("train.py", 7, "train")),  # another function begins there now
        wait("aten::index", "", SourceLine("train.py", 6, "other")),
        wait("aten::index", "", SourceLine("absent.py", 6, "train")),
    ],
)
def test_otherwise_nothing_is_said(site):
    assert resolved_site(site) == site


@pytest.mark.parametrize("source", ["", "def train(:", "\0", "x = 1\n" * 3])
def test_source_that_tells_nothing(source):
    site = wait("aten::index")
    assert resolved_site(site, source) == site


def test_lines_of_call_stacks_are_exact_and_get_their_text():
    site = wait("aten::nonzero", "", SourceLine("train.py", 15, "train"))
    assert resolved_site(site, stacks="call-stack").line.code == "first = out.nonzero()"
    moved = wait("aten::nonzero", "", SourceLine("train.py", 4, "train"))
    assert resolved_site(moved, stacks="call-stack") == moved


def test_backward_is_attributed_to_the_forward_call():
    helper = SourceLine("lib/x.py", 1, "helper", library="lib")
    site = Site(
        operator="aten::item", mechanism="read", node="SumBackward0", forward=(helper, TRAIN), stack=()
    )
    assert resolved_site(site).line.line == 9
    plain = Site(operator="aten::item", mechanism="read", node="SumBackward0", forward=(TRAIN,))
    assert resolved_site(plain) == plain


@pytest.mark.parametrize(
    "other",
    [
        "y = x in (1, 2)",
        "y = 0 < x < 1",
        "y = [z for z in x if z]",
        "y = x or 1",
        "y = 1 if x else 2",
        "assert x",
    ],
)
def test_a_condition_is_reported_only_if_nothing_else_reads_it(other):
    alone = "def train(x):\n    if x:\n        pass\n"
    site = wait("aten::_local_scalar_dense", "Tensor.__bool__", SourceLine("train.py", 1, "train"))
    assert resolved_site(site, alone).line.line == 2
    assert resolved_site(site, f"{alone}    {other}\n") == site


def test_an_index_that_is_taken_and_put_back():
    site = wait("aten::index", "", SourceLine("train.py", 1, "train"))
    assert resolved_site(site, "def train(x, m):\n    x[m] += 1\n").line.line == 2
    assert resolved_site(site, "def train(x, m):\n    x[m] += 1\n    y = x[m]\n") == site
