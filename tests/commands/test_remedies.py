"""What would make a run fit: what is tried, what is reckoned, and what the verdict says of it."""

from __future__ import annotations

import json

import msgspec
import pytest

from gapless.analyze import report
from gapless.analyze.attempts import make_attempt
from gapless.analyze.remedies import calculate_attempts, candidates
from gapless.commands._find import describe_attempt
from gapless.commands._remedies import half_batch
from gapless.memory.recorder import Recorder
from gapless.model import Ending, Environment, Session, StepMark
from gapless.model.attempt import Attempt
from gapless.model.programme import Entry, Programme
from gapless.model.source import SourceLine

MIB = 1 << 20
STEP = (SourceLine("/site/torch/optim/adamw.py", 10, "step", library="torch"),)


@pytest.mark.parametrize(
    ("words", "halved"),
    [
        (["--batch-size", "8"], ("--batch-size 4", ["--batch-size", "4"])),
        (["-v", "--batch_size=9"], ("--batch_size=4", ["-v", "--batch_size=4"])),
        (["data.train_batch=16", "x=1"], ("data.train_batch=8", ["data.train_batch=8", "x=1"])),
        (["--batch-size", "1"], None),
        (["--batch-size"], None),
        (["--batch-norm", "--epochs", "4"], None),
        (["--epochs", "4"], None),
        ([], None),
    ],
)
def test_half_of_the_batch(words: list[str], halved) -> None:
    assert half_batch(words) == halved


def lacking(limit: int = 100) -> Session:
    """Weights of 16 MiB, two states of 16 each, and 64 of activations in four layers: 112 in all."""
    memory = Recorder()
    memory.alloc("weights", 16 * MIB, kind="parameter")
    for n in range(2):
        memory.alloc(f"state{n}", 16 * MIB, kind="optimizer")
    for _ in range(3):
        for n in range(4):
            memory.alloc(f"a{n}", 16 * MIB, kind="activation")
        memory.alloc("grad", MIB, kind="backward")
        for n in range(4):
            memory.free(f"a{n}")
        memory.free("grad")
        memory.step()
    run = memory.run(
        origin="emulated", gpu="Tesla T4", limit=limit * MIB, total_memory=(limit + 512) * MIB,
        classes=(("layers[*]", "Block"), ("layers[*].mlp", "Mlp"), ("head", "Linear")),
    )  # fmt: skip
    places = tuple(
        msgspec.structs.replace(place, module=f"layers[{at}].mlp" if place.kind == "activation" else "")
        for at, place in enumerate(run.places)
    )
    marks = tuple(StepMark(kind="optimizer", tick=n, time=float(n), name="AdamW.step") for n in range(3))
    return Session(
        script=("train.py",),
        environment=Environment(device="Tesla T4", emulated=True),
        marks=marks,
        memory=(msgspec.structs.replace(run, places=places),),
    )


def test_layers_and_their_largest_part_are_worth_checkpointing() -> None:
    session = lacking()
    options = [candidate.option for candidate in candidates(session, report(session).memory)]
    assert options == ["checkpoint=Block", "checkpoint=Mlp"]


def test_what_fits_needs_no_remedy() -> None:
    session = lacking(400)
    result = report(session)
    assert list(candidates(session, result.memory)) == list(calculate_attempts(session, result.memory)) == []
    assert "fits" in result.verdict.facts[0]


def test_states_are_reckoned_by_their_bytes() -> None:
    """Of 32 MiB states of 8 bits leave 8 MiB and 4 bytes for 256 elements; eight GPUs leave 4 MiB."""
    session = lacking(110)
    eight, sharded = calculate_attempts(session, report(session).memory)
    per_state = 16 * MIB // 4
    assert eight.allocated == (16 + 64 + 1) * MIB + 2 * (per_state + 4 * per_state // 256)
    assert sharded.allocated == (16 + 64 + 1) * MIB + 2 * 2 * MIB
    assert not eight.tried
    assert "calculated" in eight.note
    assert "8 GPUs" in sharded.what


def test_the_verdict_names_what_was_tried_before_what_is_reckoned() -> None:
    session = lacking()
    tried = Attempt(what="checkpoint `Block` (layers[*])", fits=True, needs=60 * MIB, has=100 * MIB)
    failed = Attempt(what="checkpoint `Mlp`", failed="ValueError: no")
    rest = tuple(calculate_attempts(session, report(session).memory))
    result = report(msgspec.structs.replace(session, remedies=(failed, tried, *rest)))
    changes = [change.what for change in result.verdict.do_first]
    assert changes[0] == "checkpoint `Block` (layers[*])"
    assert changes[-1].endswith("(reckoned)")
    assert result.verdict.level == "failed"
    (table,) = [table_ for table_ in result.tables if table_.title == "What would make it fit"]
    assert table.rows[0].cells[0] == "checkpoint `Mlp`"


def test_a_change_that_leaves_too_little_for_nccl_says_so() -> None:
    reduce = Entry(kind="collective", name="all_reduce", ranks=2, group="all 2 ranks")
    session = msgspec.structs.replace(lacking(), programme=Programme(entries=(reduce,)))
    tight = Attempt(what="checkpoint `Block`", fits=True, needs=60 * MIB, has=100 * MIB)
    ample = Attempt(what="--batch-size 1", fits=True, needs=60 * MIB, has=9000 * MIB)
    result = report(msgspec.structs.replace(session, remedies=(tight, ample)))
    changes = {change.what for change in result.verdict.do_first}
    assert {"checkpoint `Block` (leaves too little for NCCL)", "--batch-size 1"} <= changes
    (table,) = [table_ for table_ in result.tables if table_.title == "What would make it fit"]
    assert [row.cells[1] for row in table.rows] == ["by itself", "yes"]
    (note,) = [note_ for note_ in table.notes if "NCCL" in note_]
    assert "checkpoint `Block` leaves 40 MiB" in note
    assert "--batch-size 1" not in note


def test_where_nothing_helps_the_closest_is_named() -> None:
    session = lacking(40)
    short = Attempt(what="checkpoint `Block`", needs=60 * MIB, has=40 * MIB)
    result = report(msgspec.structs.replace(session, remedies=(short,)))
    assert any(
        why == "None of 1 change alone makes it fit; closest: checkpoint `Block`, 20 MiB short"
        for why in result.verdict.why
    )


def growing(how: str = "enough-steps") -> Session:
    """Ten steps, each of which leaves 4 MiB behind in 100."""
    memory = Recorder()
    memory.alloc("weights", 16 * MIB, kind="parameter")
    for n in range(10):
        memory.alloc(f"kept{n}", 4 * MIB, kind="activation", stack=STEP)
        memory.step()
    run = memory.run(origin="emulated", gpu="Tesla T4", limit=100 * MIB, total_memory=612 * MIB)
    session = lacking()
    marks = tuple(StepMark(kind="optimizer", tick=n, time=float(n), name="AdamW.step") for n in range(10))
    return msgspec.structs.replace(session, memory=(run,), marks=marks, ending=Ending(how=how))  # type: ignore[arg-type]


def test_a_setting_under_which_memory_grows_fits_for_so_many_steps_only() -> None:
    """56 of 100 MiB are taken: eleven times 4 are left."""
    attempt = make_attempt(growing(), "checkpoint `Block`")
    assert (attempt.fits, attempt.lasts, attempt.helps) == (True, 11, False)
    assert describe_attempt(attempt).startswith(
        "checkpoint `Block`: fits for 11 more steps, 56 MiB of 100 MiB"
    )
    for how in ("finished", "exit"):
        ended = make_attempt(growing(how), "checkpoint `Block`")
        assert (ended.lasts, ended.helps) == (-1, True)
        whole = report(growing(how))
        assert whole.planned.steps == whole.steps.seen
        assert whole.verdict.sentence.startswith("The whole run fits, but memory grew by 4 MiB in every step")

    result = report(msgspec.structs.replace(lacking(), remedies=(attempt,)))
    assert not any("checkpoint" in change.what for change in result.verdict.do_first)
    assert result.verdict.why[-1] == (
        "None of 1 change alone makes it fit, since memory grows from step to step; with checkpoint `Block` "
        "it fits for 11 more steps"
    )
    (table,) = [table_ for table_ in result.tables if table_.title == "What would make it fit"]
    assert (table.rows[0].cells[1], table.rows[0].tone) == ("for 11 more steps", "bad")


SCRIPT = """\
import torch
from torch import nn

torch.cuda.set_per_process_memory_fraction(0.004)  # 60.4 MiB of a T4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, x):
        return x + self.inner(x)


model = nn.Sequential(*[Block() for _ in range(6)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.ones(4096, 64, device="cuda")).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_end_to_end(python, write) -> None:
    """Six layers keep 4 MiB before and 4 MiB behind each GELU; checkpointed, one layer at a time does."""
    pytest.importorskip("torch", minversion="2.10")
    write("train.py", SCRIPT)
    words = ("--memory", "--gpu", "t4", "--steps", "1", "--no-prices", "-f", "json", "-o", "run.json")
    process = python("-m", "gapless", "check", *words, "train.py")
    assert process.returncode == 0, process.stderr
    data = json.loads(process.stdout.splitlines()[-1])
    assert data["level"] == "failed"
    assert data["memory"][0]["lack"]["has"] < 61 * MIB
    block = next(remedy for remedy in data["remedies"] if "checkpoint `Block`" in remedy["what"])
    assert block["tried"]
    assert block["fits"]
    assert block["needs"] < data["memory"][0]["lack"]["needs"]
    assert any("checkpoint `Block`" in change["what"] for change in data["do_first"])
    again = python("-m", "gapless", "show", "-f", "json", "run.json")
    assert json.loads(again.stdout)["do_first"] == data["do_first"]


def test_a_change_that_is_none_is_refused_before_the_script_runs(python, write) -> None:
    pytest.importorskip("torch")
    write("train.py", "print('ran')")
    process = python("-m", "gapless", "check", "--with", "smaller", "train.py")
    assert (process.returncode, process.stdout) == (2, "")
    assert "--with 'smaller' is not a known change: use checkpoint=CLASS or set_to_none" in process.stderr
