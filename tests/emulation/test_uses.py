"""What is recorded of a read's place: the exact expression, and what its value is for."""

from __future__ import annotations

import sys

import msgspec
import pytest

from gapless.emulation.emulator import Emulator
from gapless.emulation.recording import value_uses
from gapless.emulation.recording.value_uses import add_uses
from gapless.model import Session, Site, SourceLine
from gapless.model.session import decode, encode

SCRIPT = """
import torch

def validate(result, reject):
    rejected = reject(result)
    if rejected:
        raise RuntimeError

class Model(torch.nn.Module):
    def forward(self, x):
        return x, x.sum().item()

x = torch.ones(4, 4, device="cuda")
print(x[0, 0].item(), x[1, 1].item())
validate(x.sum(), torch.isnan)
_, length = Model()(x)
x[:int(length)]
if x.sum() > 3:
    x = x * 2
part = x[x > 1].numel()
ids = (
    torch.arange(4, device="cuda")
    .repeat(x[0, 0].long())
)
"""
EXPECTED = {
    "x[0, 0].item()": {"show"},
    "x[1, 1].item()": {"show"},
    "rejected": {"finite"},
    "x.sum().item()": {"slice"},
    "x.sum() > 3": {"condition"},
    "x[x > 1]": {"count"},
    "x[0, 0].long()": {"size"},
}

needs_spans = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python 3.11 records where an expression is"
)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    path = tmp_path_factory.mktemp("uses") / "script.py"
    path.write_text(SCRIPT)
    with Emulator() as emulator:
        exec(compile(SCRIPT, str(path), "exec"), {"__name__": "script"})
        return emulator.session()


@needs_spans
def test_each_read_has_its_expression_and_its_uses(session: Session) -> None:
    kinds = [
        ({use.kind for use in site.uses}, site.expression, site.line) for site in session.sites if site.uses
    ]
    assert [kind for kind, _, _ in kinds] == list(EXPECTED.values())


@needs_spans
def test_two_reads_of_one_line_are_two_sites(session: Session) -> None:
    first, second = [
        site for site in session.sites if site.line is not None and site.line.code.startswith("print")
    ]
    assert first != second
    assert first.span is not None
    assert second.span is not None
    assert first.span.end_column < second.span.column


def test_a_saved_session_keeps_the_uses(session: Session) -> None:
    assert decode(encode(session)).sites == session.sites


def test_sessions_without_uses_are_read(session: Session) -> None:
    plain = [msgspec.structs.replace(site, span=None, expression="", uses=()) for site in session.sites]
    old = msgspec.structs.replace(session, sites=tuple(plain))
    data = encode(old)
    assert b'"uses"' not in data
    assert decode(data).sites == old.sites


def test_a_defect_is_noted_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(value_uses, "read_uses", fail)
    site = Site(operator="aten::item", mechanism="read", stack=(SourceLine("a.py", 1),))
    with Emulator() as emulator:
        import torch

        torch.ones(1, device="cuda").item()
        session = emulator.session()
    assert len(session.sites) == 1
    assert any("RecursionError: too deep" in note and "1 value" in note for note in session.notes)
    assert add_uses([], {}) == ((), ())
    assert site.uses == ()
