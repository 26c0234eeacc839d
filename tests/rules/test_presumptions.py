"""Advice presumes something: that a name is a device, that a list stays the same, that there is a loop.

Where that is not so, it must not be said; and where code is given, it runs and leaves the wait out.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rules.test_matching import BOOL, H2D, INDEX, ITEM, LINES, advice, lib, site

import gapless
from gapless.analyze import report
from gapless.analyze.run.loop import is_in_loop
from gapless.emulation.core.core import fused_form
from gapless.model import FINE, NOTHING, Session, Site, SourceLine
from gapless.rules import match_rule
from gapless.rules._code import parse_line
from gapless.torch_internals import VERSION

FILE = "/work/train.py"
PRELUDE = (Path(__file__).parent / "cases" / "prelude.py").read_text()
PINNED = {**H2D, "detail": "pinned"}
SCALAR = {**H2D, "detail": "scalar"}
OF_INDEX = {**H2D, "operator": "aten::index", "detail": "index"}
HISTC = {"operator": "aten::histc", "mechanism": "values"}
UNIQUE = {"operator": "aten::_unique2", "mechanism": "size"}
INDEXED = {**ITEM, "call": "Tensor.__index__"}


# -- what is quoted is what somebody wrote -----------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "wait"),
    [
        (").cuda()", H2D),
        (").to(device)", PINNED),
        ("x = x.to(", H2D),
        ("x, y = x.to(device), y.to(", PINNED),
        ("weights = torch.tensor(", SCALAR),
        ("h = torch.histc(x,", HISTC),
        ("loss = F.cross_entropy(logits[mask],", INDEX),
        ("total += scale(loss.item(),", ITEM),
    ],
)
def test_what_goes_on_in_another_line_is_not_quoted(line: str, wait: dict[str, str]) -> None:
    code = parse_line(line)
    assert code is not None
    for quoted in re.findall(r"`([^`]+)`", advice(line, **wait)):
        assert "()" not in quoted.replace(".detach()", "").replace("torch.full((),", "")
        assert not quoted.startswith(line.split("=")[0].strip() + " =")


@given(st.sampled_from([line for line, _, _ in LINES]), st.integers(1, 60), st.integers(0, 60))
def test_only_text_of_the_line_is_ever_quoted(line: str, end: int, begin: int) -> None:
    code = parse_line(line[min(begin, end - 1) : end])
    for node in code.nodes() if code is not None else ():
        if isinstance(node, ast.expr):
            assert code is not None
            assert code.text(node) in line


@pytest.mark.parametrize(
    ("line", "wait", "wanted"),
    [
        ("rows = (a + b).tolist()", {**ITEM, "call": "Tensor.tolist"}, "compute with `(a + b)`"),
        ("xs.append((a - b).tolist())", {**ITEM, "call": "Tensor.tolist"}, "`xs.append((a - b).detach())`"),
        ("y = float(a + b)", {**ITEM, "call": "Tensor.__float__"}, "`y = (a + b).detach()`"),
        ("worst = max(a | b)", BOOL, "`(a | b).max()`"),
        (
            "if (a if c else b) in seen:",
            {**ITEM, "call": "Tensor.__contains__"},
            "`(seen == (a if c else b)).any()`",
        ),
        (
            "same = torch.equal(a, b if c else d)",
            {**ITEM, "call": "torch.equal"},
            "`(a == (b if c else d)).all()`",
        ),
        (
            "y = torch.add(x, z, alpha=a + b)",
            {**ITEM, "call": ""},
            "`a + (a + b) * b`",
        ),
        ("y = (a + b)[[0, 1]]", OF_INDEX, "device=(a + b).device"),
    ],
)
def test_what_is_quoted_keeps_its_meaning(line: str, wait: dict[str, str], wanted: str) -> None:
    assert wanted in advice(line, **wait)


# -- where the presumption does not hold, nothing is said --------------------------------------------

NOT_SAID = [
    ("x = torch.randn(4).to(f)", H2D, "device=f"),
    ("x = torch.zeros(3).to(other.weight)", H2D, "device=other"),
    ("x = torch.randn(4, generator=g).to(device)", H2D, "is created on the GPU"),
    ("x = torch.empty(4, pin_memory=True).to(device)", H2D, "is created on the GPU"),
    ("x = x.cuda(0, True)", PINNED, "True, non_blocking"),
    ("x = x.to(device, torch.float16, True)", PINNED, "True, non_blocking"),
    ("x = x.to(device, **options)", PINNED, "options, non_blocking"),
    ("w = torch.tensor([lr, decay], device=dev)", SCALAR, "before the loop"),
    ("w = torch.tensor([len(x) for x in batch], device=dev)", SCALAR, "before the loop"),
    ("y = x[[i, j]]", OF_INDEX, "torch.tensor([i, j]"),
    ("y = x[[0], rows]", OF_INDEX, "is a slice"),
    ("y = x[[True]]", OF_INDEX, "is a slice"),
    ("item = names[:n]", INDEXED, "names.shape"),
    ("item = names[i]", INDEXED, "names.index_select"),
    ("text += str(loss.item())", ITEM, "sum up"),
    ("losses += [loss.item()]", ITEM, "sum up"),
    ("u = x.unique(True)", UNIQUE, "(True"),
    ("u = torch.unique(x, True)", UNIQUE, "(x, True"),
    ("h = torch.histc(x, max=3)", HISTC, "max=3, min=low"),
    ("y = max(len(t) for t in ts)", BOOL, "torch.stack(len"),
]


@pytest.mark.parametrize(("line", "wait", "never"), NOT_SAID, ids=[line for line, _, _ in NOT_SAID])
def test_advice_is_not_given_where_what_it_presumes_is_not_so(
    line: str, wait: dict[str, str], never: str
) -> None:
    assert never not in advice(line, **wait)


def test_a_factory_receives_the_dtype_as_well() -> None:
    text = advice("x = torch.randn(4).to(device, torch.float16)", **H2D)
    assert "`torch.randn(4, device=device, dtype=torch.float16)`" in text
    text = advice("x = torch.randn(4).to(device='cuda:1', dtype=half)", **H2D)
    assert "`torch.randn(4, device='cuda:1', dtype=half)`" in text


def generation(function: str, code: str) -> str:
    return advice("model.generate(x)", lib("transformers/generation/utils.py", function, code), **BOOL)


def test_a_check_after_each_token_is_reported_at_its_line() -> None:
    asks = "return bool(unfinished_sequences.max() == 0)"
    assert "after each token" in generation("StopCheck.__call__", asks)
    assert "after each token" in generation("GenerationMixin._has_unfinished_sequences", "elif stop:")
    for function, code in (
        (
            "GenerationMixin._prepare_special_tokens",
            "if torch.isin(eos_token_tensor, pad_token_tensor).any():",
        ),
        ("GenerationMixin.generate", "if torch.any(attention_mask[:, -1] == 0).item():"),
    ):
        assert "after each token" not in generation(function, code)


def test_logging_steps_are_advised_where_the_trainer_logs() -> None:
    where = lib("transformers/trainer.py", "Trainer._save_checkpoint", "metric.item()")
    assert "logging_steps" not in advice("trainer.train()", where, **ITEM)


def test_lengths_on_the_cpu_are_not_asked_for_again() -> None:
    copies = site("F.ctc_loss(a, b, c, d)", operator="aten::_ctc_loss", mechanism="h2d")
    read_back = site("F.ctc_loss(a, b, c, d)", operator="aten::_ctc_loss.Tensor", mechanism="d2h")
    assert "are on the CPU already" in match_rule(copies).remedy(copies)
    assert match_rule(copies).change_at(copies).startswith(NOTHING)
    assert "give the lengths" in match_rule(read_back).remedy(read_back)


# -- what a loop is presumed for ---------------------------------------------------------------------

SCRIPT = """\
model = Net(
    width,
).cuda()
for path in paths:
    model.load(path).cuda()
for x in first.cuda():
    pass
parts = [part.cuda() for part in parts]
while loss.item() > 3:
    pass
def step(x):
    x.cuda()
for x in xs:
    def inner(x):
        x.cuda()
for x in xs:
    step(x)
"""


def at(number: int, *outer: int) -> tuple[SourceLine, ...]:
    lines = SCRIPT.splitlines()
    return tuple(
        SourceLine(FILE, line_number, "f", lines[line_number - 1].strip()) for line_number in (number, *outer)
    )


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        (at(3), False),
        (at(5), True),
        (at(6), False),
        (at(8), True),
        (at(9), True),
        (at(12), False),
        (at(12, 17), True),
        (at(15), False),
        ((SourceLine(FILE, 3, "f", "something else"),), None),
        ((SourceLine(FILE, 99, "f", "x"),), None),
        ((), None),
    ],
)
def test_a_loop_around_a_line_is_seen_in_the_source(
    stack: tuple[SourceLine, ...], expected: bool | None
) -> None:
    assert is_in_loop(stack, lambda file: SCRIPT) is expected


TRAINING = """\
import torch
model = torch.nn.Sequential(
    torch.nn.Linear(4, 4),
).cuda()
teachers = []
for number in range(2):
    teachers.append(torch.nn.Linear(4, 4).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    loss = model(torch.randn(2, 4, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    criterion = torch.nn.CrossEntropyLoss(weight=torch.ones(4)).cuda()
final = loss.item()
"""
UNTRAINED = "import torch\nmodel = torch.nn.Linear(4, 4).cuda()\nprint(model.weight.sum().item())\n"


def as_a_script(session: Session) -> Session:
    """`session` without the frames of the tests that called the script, which have loops of their own."""

    def cut(stack: tuple[SourceLine, ...]) -> tuple[SourceLine, ...]:
        top = next(n for n, frame in enumerate(stack) if frame.function == "<module>")
        return stack[: top + 1]

    return msgspec.structs.replace(
        session,
        sites=tuple(msgspec.structs.replace(site, stack=cut(site.stack)) for site in session.sites),
        marks=tuple(msgspec.structs.replace(mark, stack=cut(mark.stack)) for mark in session.marks),
    )


def findings(text: str, folder: Path) -> dict[int, tuple[str, str]]:
    """Remedy and change by line."""
    path = folder / "train.py"
    path.write_text(text)
    with gapless.emulate() as emulation, contextlib.redirect_stdout(io.StringIO()):
        exec(compile(text, str(path), "exec"), {"__name__": "__main__"})
    diagnosis = report(as_a_script(emulation.session))
    changes = {action.what for action in diagnosis.verdict.do_first}
    assert not any(change.startswith(NOTHING) for change in changes)
    return {
        finding.line.line: (finding.remedy, finding.change)
        for finding in diagnosis.findings
        if finding.line is not None
    }


def test_a_loop_is_spoken_of_where_there_is_one(tmp_path: Path) -> None:
    advice = findings(TRAINING, tmp_path)
    assert advice[4][0] == FINE
    assert advice[4][1].startswith(NOTHING)
    assert "before the loop" in advice[7][0]
    assert "before the loop" in advice[13][0]
    assert advice[14][0] == FINE


def test_a_run_without_steps_or_loops_gets_no_loop_advice(tmp_path: Path) -> None:
    advice = findings(UNTRAINED, tmp_path)
    assert advice[2][0] == FINE
    assert advice[3][0] != FINE  # a piece of a loop, perhaps: reading less often may help


# -- the code that is advised runs, and does not wait ------------------------------------------------

OPTIMIZERS = [
    kind
    for name, kind in sorted(vars(torch.optim).items())
    if isinstance(kind, type)
    and issubclass(kind, torch.optim.Optimizer)
    and kind is not torch.optim.Optimizer
]


def scaled(kind: type, **options: object) -> list[Site]:
    """The places that wait where a scaler lets an optimizer of this class step."""
    with gapless.emulate() as emulation:
        weights = [torch.nn.Parameter(torch.ones(2, 2, device="cuda"))]
        optimizer = kind(weights, **options)
        scaler = torch.amp.GradScaler("cuda")
        scaler.scale(weights[0].sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    return [site for site in emulation.session.sites if match_rule(site).code == "GAP140"]


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_fused_is_advised_for_optimizers_that_have_it(kind: type) -> None:
    if kind.__name__ in ("LBFGS", "SparseAdam"):
        assert fused_form(kind) == kind.__name__  # a scaler serves neither
        return
    (advice,) = scaled(kind)
    advised = f"give {kind.__name__} `fused=True`" in match_rule(advice).remedy(advice)
    try:
        helps = not scaled(kind, fused=True)
    except TypeError:
        helps = False
    assert advised is helps


def test_a_subclass_is_recognized_by_its_parameters() -> None:
    class Passes(torch.optim.AdamW):
        def __init__(self, params: object, **options: object) -> None:
            super().__init__(params, **options)

    class Keeps(torch.optim.AdamW):
        def __init__(self, params: object) -> None:
            super().__init__(params)

    assert fused_form(Passes) == "Passes, fused=False"
    assert fused_form(Keeps) == "Keeps"


NUMBERS_WRITTEN = ("x[counts] = 1.0", "x[0, 1] = -1")
"""Numbers are copied there before torch 2.15."""
APPLIED = [
    "total += loss.item()",
    "losses.append(loss.item())",
    "value = float(loss)",
    "best = max(loss, target_loss)",
    "bounded = max(loss, 1.0)",
    "chosen = x if loss > 3 else z",
    "same = torch.equal(x, z)",
    "near = torch.allclose(x, z, atol=0.1)",
    "row = x[best]",
    "rows = counts.tolist()",
    "seen = 3 in y",
    "scaled = x.masked_fill(mask, loss)",
    "mean = x[mask].mean()",
    "sum = x[mask].sum()",
    "error = F.mse_loss(x[mask], z[mask])",
    "x[mask] = z[mask]",
    "x[mask] += 1",
    "kinds = torch.unique(y)",
    "number = torch.bincount(y, minlength=5)",
    "made = torch.randn(4).to(device)",
    "made = torch.zeros(2, 3).cuda()",
    "half = torch.tensor(0.5, device=device)",
    "like = x.new_tensor(2.0)",
    "last = x[:, [-1]]",
    *NUMBERS_WRITTEN,
    "picked = torch.where(mask, torch.tensor(0.0), x)",
    "factor = torch.linalg.cholesky(covariance)",
    "lu, pivots = torch.linalg.lu_factor(covariance)",
    "inverse = torch.linalg.inv(covariance)",
    "policy = torch.distributions.Categorical(logits=logits)",
    "drawn = torch.normal(x, z_positive)",
]
BEFORE = (
    "total, losses, best = 0.0, [], scores.argmax()\nloss, z_positive = loss.detach(), z.abs()\n"
    "import gapless\nsize = n = 5\nx = x.clone()\n"
)


def waits_of(line: str, folder: Path) -> list[Site]:
    """Where it waits when `line` is run behind the prelude."""
    text = PRELUDE + BEFORE + line + "\n"
    path = folder / f"{abs(hash(line))}.py"
    path.write_text(text)
    torch.distributions.Distribution.set_default_validate_args(True)
    with gapless.emulate() as emulation:
        exec(compile(text, str(path), "exec"), {"__name__": "__main__"})
    number = (PRELUDE + BEFORE).count("\n") + 1
    return [site for site in emulation.session.sites if site.line is not None and site.line.line == number]


@pytest.mark.parametrize("line", APPLIED)
def test_the_code_that_is_advised_does_not_wait(line: str, tmp_path: Path) -> None:
    before = waits_of(line, tmp_path)
    if VERSION >= (2, 15) and line in NUMBERS_WRITTEN:
        assert not before
        return
    assert before
    # Nothing uses what these lines read: their advice would be to delete the read.
    general = msgspec.structs.replace(before[0], uses=())
    named = match_rule(general)
    quoted = re.findall(r"`([^`]+)`", named.remedy(general))
    assert quoted
    after = waits_of(quoted[0], tmp_path)
    assert not [event.operator for event in after], f"{named.code}: {quoted[0]}"
