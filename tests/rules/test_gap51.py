"""Compiled code: the rules' own examples through the compile pass, in one process, and what hits say."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import fork_server
import msgspec
import pytest

from gapless.analyze import report
from gapless.model import Compiled, CompiledRule, GraphBreak, Recompile, Session, SourceLine
from gapless.model.compiled import Outside
from gapless.model.session import decode, encode, load
from gapless.render import Style, renderer
from gapless.rules import rules_of_kind

RULES = rules_of_kind(CompiledRule)
AT = SourceLine(file="train.py", line=12, function="Net.forward", code="y = net(x).item()")
CALL = SourceLine(file="train.py", line=30, function="<module>", code="step(x)")
TORCH = SourceLine(file="torch/nn/m.py", line=3, function="forward", library="torch")
UNEQUAL = "tensor 'x' size mismatch at index 0. expected 4, actual 5"


def met(compiled: Compiled) -> list[str]:
    return [finding.code for finding in report(Session(compiled=(compiled,)), priced=False).findings]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """One run of every rule's example and of its replacement, each a file of its own."""
    if sys.platform == "win32":
        pytest.skip("a process cannot be copied here")
    folder = tmp_path_factory.mktemp("compiled")
    calls = ["import runpy"]
    for rule in RULES:
        for title, kind in (("Example", "bad"), ("Use instead", "good")):
            (code,) = re.findall(r"```python\n(.*?)```", rule.sections()[title], flags=re.DOTALL)
            path = folder / f"{kind}_{rule.code}.py"
            path.write_text("import torch\n" + code)
            calls.append(f"runpy.run_path({str(path)!r})")
    script = folder / "all_of_them.py"
    script.write_text("\n".join(calls))
    saved = folder / "run.gapless.json"
    words = ("check", "--steps", "all", "--no-loader", "--no-prices", "-q", "-o", str(saved), str(script))
    done = fork_server.run(("-m", "gapless", *words), folder)
    assert done.returncode == 0, done.stderr
    return load(str(saved))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_example_is_met_and_its_replacement_is_silent(rule: CompiledRule, session: Session) -> None:
    results = report(session, priced=False).findings
    names = {
        finding.line.name for finding in results if finding.code == rule.code and finding.line is not None
    }
    assert f"bad_{rule.code}.py" in names
    good = [
        finding.code
        for finding in results
        if finding.line is not None and finding.line.name == f"good_{rule.code}.py"
    ]
    assert not [code for code in good if code.startswith("GAP51")]


def test_nothing_failed_to_compile_and_the_session_is_saved_whole(session: Session) -> None:
    assert not [compiled.failed for compiled in session.compiled if compiled.failed]
    assert decode(encode(session)) == session
    assert len(session.compiled) == 2 * len(RULES)
    assert not [note for note in session.notes if "not known" in note]


def test_a_line_is_one_finding_with_each_reason_and_one_remedy(session: Session) -> None:
    (finding,) = [
        finding
        for finding in report(session, priced=False).findings
        if finding.code == "GAP511" and finding.line is not None and finding.line.name == "bad_GAP511.py"
    ]
    assert finding.line is not None
    assert "x.mean().item()" in finding.line.code
    assert "ends a graph of scaled" in finding.evidence[0]
    assert (
        sum(text.startswith("the compiler says") for text in finding.evidence) == 2
    )  # the read, and the print
    assert "keep the value a tensor" in finding.remedy
    assert "read and print it after" in finding.remedy


def test_every_format_shows_compiled_code(session: Session) -> None:
    document = report(session, priced=False)
    assert "graph break" in document.verdict.sentence or any("graph break" in w for w in document.verdict.why)
    for form in ("text", "markdown", "json", "html", "csv"):
        assert "GAP511" in renderer(form)(document, Style())


def test_breaks_that_were_asked_for_or_are_torchs_own_are_none() -> None:
    broken = GraphBreak(kind="Tensor.item()", stack=(AT, CALL), inside=1)
    assert met(Compiled(name="f", breaks=(broken,))) == ["GAP511"]
    intended = msgspec.structs.replace(broken, kind="Call to `torch._dynamo.graph_break()`")
    within = msgspec.structs.replace(broken, stack=(TORCH, CALL))
    assert met(Compiled(name="f", breaks=(intended, within))) == []
    raised = msgspec.structs.replace(within, raises=True)  # as DistributedDataParallel's with fullgraph=True
    assert met(Compiled(name="f", options=("fullgraph=True",), breaks=(raised,))) == ["GAP511"]


def test_compiled_again_once_is_how_a_size_is_learnt() -> None:
    once = Recompile(guard=UNEQUAL, line=AT, calls=(2,), caller=CALL)
    assert met(Compiled(name="f", recompiles=(once,))) == []
    twice = msgspec.structs.replace(once, times=2, calls=(2, 3))
    assert met(Compiled(name="f", recompiles=(twice,))) == ["GAP512"]
    assert met(Compiled(name="f", recompiles=(twice,), limit="recompile_limit")) == ["GAP512", "GAP513"]


@pytest.mark.parametrize(
    ("guard", "said", "remedy"),
    [
        (UNEQUAL, "dimension 0 of `x` was 5 instead of 4", "mark_dynamic(x, 0)"),
        ("self.calls == 3", "`self.calls` was no longer 3", "make `self.calls` a tensor"),
        ("self.param_groups[0]['lr'] == 0.1", "was no longer 0.1", "lr=torch.tensor"),
        ("___stack0 == 4.2", "a value that is read on the CPU", "return the tensor"),
        ("len(G['history']) == 6", "the length of `history` had changed", "keep the length of `history`"),
        ("GLOBAL_STATE changed: grad_mode", "gradients were switched", "compile the two uses separately"),
    ],
)
def test_guards_are_said_in_words_and_have_a_remedy(guard: str, said: str, remedy: str) -> None:
    again = Recompile(guard=guard, line=AT, calls=(2, 3), caller=CALL, times=2)
    (finding,) = report(Session(compiled=(Compiled(name="f", recompiles=(again,)),)), priced=False).findings
    assert said in finding.evidence[0]
    assert remedy in finding.remedy


def test_few_sizes_are_captured_in_silence() -> None:
    sizes = Outside(skip="dynamic-shapes", line=AT)
    assert met(Compiled(name="f", graphs=2, shapes=3, outside=(sizes,))) == []
    assert met(Compiled(name="f", graphs=2, shapes=5, outside=(sizes,))) == ["GAP515"]


def test_what_could_not_be_compiled_is_a_note() -> None:
    diagnosis = report(Session(compiled=(Compiled(name="f", line=AT, failed="KeyError: 3"),)), priced=False)
    assert "f (train.py:12) could not be compiled after the run: KeyError: 3" in diagnosis.notes


def test_a_report_without_compiled_code_has_no_table_of_it() -> None:
    assert not [table for table in report(Session(), priced=False).tables if "Compiled" in table.title]


def test_no_path_of_this_machine_is_shown(session: Session) -> None:
    folder = str(Path(sys.prefix))
    document = report(session, priced=False)
    assert not [
        text
        for finding in document.findings
        for text in (*finding.evidence, finding.remedy)
        if folder in text
    ]


def test_what_became_no_graph_is_said() -> None:
    """As a module of torch's own class does, after ``module.compile()``."""
    notes = report(Session(compiled=(Compiled(name="Linear", calls=3, compiled=3),)), priced=False).notes
    assert "Linear produced no graph: the compiler skips it, and it runs eagerly" in notes
    compiled = Compiled(name="Linear", calls=3, compiled=3, graphs=1)
    assert not any("no graph" in note for note in report(Session(compiled=(compiled,)), priced=False).notes)


@pytest.mark.parametrize(("calls", "codes"), [((1,), []), ((1, 2), ["GAP512"]), ((2, 3), ["GAP512"])])
def test_first_calls_of_what_is_compiled_several_times_over_repeat_nothing(
    calls: tuple[int, ...], codes: list[str]
) -> None:
    again = Recompile(
        guard="tensor 'p' rank mismatch. expected 2, actual 1", calls=calls, caller=CALL, times=3
    )
    assert met(Compiled(name="update", line=AT, calls=60, graphs=4, recompiles=(again,))) == codes
