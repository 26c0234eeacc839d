"""What a report of memory says first, and which settings have a row."""

from __future__ import annotations

import msgspec
import pytest
from sessions import line

from gapless.analyze import report
from gapless.analyze.memory_report import findings, replay_memory
from gapless.analyze.tables.memory_tables import tables
from gapless.analyze.tables.offers_tables import offers_table
from gapless.analyze.verdicts.answer import with_answer
from gapless.analyze.verdicts.memory_verdict import fit_facts, verdict, with_memory
from gapless.analyze.verdicts.search import with_search
from gapless.memory.recorder import Recorder
from gapless.memory.sentence import answer
from gapless.model import Environment, Finding, Frequency, Report, SourceLine, Verdict
from gapless.model.attempt import Attempt, Search
from gapless.model.memory import Holder
from gapless.model.memory_report import GraphCost, Growth, LongestBatch, MemoryReport, Outcome, Trial
from gapless.model.offer import Offer

SWEEP = """\
for size in (8, 16, 1024):
    try:
        run(size)
    except torch.cuda.OutOfMemoryError:
        break
"""
LOOKS = SWEEP.replace("torch.cuda.OutOfMemoryError", "RuntimeError as error").replace(
    "break", "assert 'out of memory' in str(error)"
)
CONDITION = """\
if 'out of memory' in str(error):
            continue
        raise
"""


@pytest.mark.parametrize(
    ("source", "handled"),
    [
        (SWEEP, True),
        (LOOKS, True),
        (SWEEP.replace("torch.cuda.OutOfMemoryError", "ValueError"), False),
        (SWEEP.replace("torch.cuda.OutOfMemoryError", "RuntimeError"), False),
        (SWEEP.replace("    try:\n        run(size)\n", "    try:\n        pass\n") + "run(1024)\n", False),
        (SWEEP.replace("break", "raise"), False),
        (SWEEP.replace("break", "print('too large')\n        sys.exit(1)"), False),
        (
            LOOKS.replace("assert 'out of memory' in str(error)", "raise ValueError('out of memory: less')"),
            False,
        ),
        (LOOKS.replace("assert 'out of memory' in str(error)", CONDITION), True),
        (LOOKS.replace("assert 'out of memory' in str(error)", CONDITION.replace(" in ", " not in ")), False),
        (SWEEP.replace("for size in (8, 16, 1024):", "if size > 0:").replace("break", "print()"), False),
    ],
    ids=[
        *("error", "message", "another", "any", "elsewhere", "raised again", "exit", "other words"),
        *("by the message", "but not this message", "no loop goes on"),
    ],
)
def test_a_sweep_that_handles_its_errors_is_said_to_carry_on(source, handled):
    line = next(n for n, text in enumerate(source.splitlines(), 1) if "run(" in text)
    memory = Recorder()
    stack = (SourceLine("/home/me/model.py", 7, "run"), SourceLine("/home/me/sweep.py", line, "<module>"))
    for size in (8, 16, 1024):
        memory.alloc("x", size << 20, stack=stack, kind="activation")
        memory.step()
    run = memory.run(origin="emulated", gpu="Tesla T4", limit=100 << 20, total_memory=612 << 20)
    replayed_run = replay_memory(run, read={"/home/me/sweep.py": source, "/home/me/model.py": ""}.__getitem__)
    clause = "; the script handles out-of-memory errors itself (sweep.py:4) and carries on"
    answer = verdict(replayed_run)
    assert answer.sentence.startswith("Does not fit: needs 1 GiB, the Tesla T4 has 100 MiB")
    assert (clause in answer.sentence) == handled
    assert (answer.level, replayed_run.ends_it) == (("fine", False) if handled else ("failed", True))


def test_a_setting_that_was_asked_for_always_has_its_row():
    trials = [
        Trial(settings=f"max_split_size_mb:{n}", outcome=Outcome(peak_reserved=n)) for n in range(20, 40)
    ]
    wanted = Trial(settings="expandable_segments:True", outcome=Outcome(peak_reserved=99), asked=True)
    memory = MemoryReport(sentence="", trials=(*trials, wanted), searched=True)
    (settings,) = (table for table in tables(memory) if table.title == "Settings")
    shown = [row.cells[0] for row in settings.rows[: settings.shown]]
    assert shown == ["as in the run", *(trial.settings for trial in trials[:8]), wanted.settings]
    assert len(settings.rows) == 1 + 21


def test_growing_memory_is_reported_and_fixed_first():
    grows = Finding(
        code="GAP405",
        name="memory-grows",
        line=line(12),
        frequency=Frequency(when="every-step", waits=0.0),
        remedy="keep `tensor.detach()`",
        change="keep `tensor.detach()`, not tensors with their graph",
        evidence=("12 MiB in 3 tensors remain from each of 9 steps",),
    )
    fine = Verdict(sentence="At most 1 GiB reserved", level="fine")
    outcome = report(MemoryReport(sentence="", answer=fine, findings=(grows,))).verdict
    assert (outcome.level, outcome.why) == (
        "act",
        ("Memory grows: 12 MiB in 3 tensors remain from each of 9 steps",),
    )
    assert [(change.what, change.line) for change in outcome.do_first] == [(grows.change, grows.line)]
    assert report(MemoryReport(sentence="", answer=fine)).verdict == fine


# What a script's verdict says of its memory -----------------------------------------------------------

FINE = Verdict(sentence="Nothing worth fixing: no syncs in 10 training steps", level="fine")


def grown(**more) -> MemoryReport:
    """A run that fits so far, of which each step leaves 1 MiB behind in a list."""
    held = Holder(name="bank", kind="list", lines=(line(12),), bytes=9 << 20, steps=9, attached=True)
    memory = MemoryReport(
        sentence="At most 40 MiB reserved",
        baseline=Outcome(peak_allocated=40 << 20, peak_reserved=40 << 20),
        growth=(Growth(line=line(4), bytes=1 << 20, tensors=1.0, steps=9),),
        holders=(held,),
        steps=12,
        **{"limit": 100 << 20, "total_memory": 100 << 20, **more},
    )
    return msgspec.structs.replace(memory, findings=findings(memory))


def of_script(*memory: MemoryReport, verdict: Verdict = FINE) -> Verdict:
    document = Report(verdict=Verdict(sentence=""), memory=memory)
    result = msgspec.structs.replace(verdict, facts=fit_facts(document))
    return with_answer(with_memory(result, document), document)


def test_growth_leads_the_verdict_on_a_script_and_nothing_fits():
    outcome = of_script(grown())
    assert outcome.sentence == (
        "Memory grows by 1 MiB in every step and would fill the GPU after 60 more; "
        "no syncs in 10 training steps"
    )
    assert outcome.level == "act"
    assert [(change.what, change.line, change.codes) for change in outcome.do_first] == [
        ("bound `bank`, or clear it", line(12), ("GAP405",))
    ]
    assert "fits" not in " ".join((outcome.sentence, *outcome.why, *outcome.facts)).lower()
    assert "enough for these 12 steps, full after 60 more" in outcome.facts[0]


def test_a_run_that_has_ended_fits_and_says_by_how_much_it_grew():
    outcome = of_script(grown(finished=True))
    assert outcome.sentence == (
        "The whole run fits, but memory grew by 1 MiB in every step, to 40 MiB of 100 MiB; "
        "no syncs in 10 training steps"
    )
    assert "would fill" not in outcome.sentence
    assert (
        "fits for the whole run of 12 steps, in which memory grew by 1 MiB in every step" in outcome.facts[0]
    )
    assert "full" not in " ".join(finding.evidence[0] for finding in grown(finished=True).findings)


def test_predictions_with_graphs_want_no_grad_in_evaluation_alone():
    held = Holder(
        name="preds", kind="list", lines=(line(12),), bytes=9 << 20, steps=9, in_graphs=9 << 20, attached=True
    )
    for training in (False, True):
        memory = grown(unused_graphs=(GraphCost(line=line(12), training=training, bytes=9 << 20),))
        memory = msgspec.structs.replace(memory, holders=(held,), findings=())
        (finding,) = [finding for finding in findings(memory) if finding.code == "GAP405"]
        assert ("no_grad()" in finding.change) != training
        assert ("detach" in finding.change) == training


def test_waits_every_five_steps_are_reported_as_such():
    every = (Growth(line=line(4), bytes=1 << 20, tensors=1.0, steps=3, every=5),)
    memory = msgspec.structs.replace(grown(), growth=every, holders=(), findings=())
    memory = msgspec.structs.replace(memory, findings=findings(memory))
    assert of_script(memory).sentence.startswith(
        "Memory grows by 1 MiB every 5 steps and would fill the GPU after 300 more; "
    )


def test_a_gpu_with_room_for_more_steps_is_not_told_to_fit():
    offer = Offer(gpu="NVIDIA A10", has=100 << 20, needs=40 << 20, fits=True, lasts=60)
    document = Report(verdict=Verdict(sentence=""), memory=(grown(),), offers=(offer,))
    shown = offers_table(document)
    assert shown is not None
    (row,) = shown.rows
    assert (row.tone, row.cells[1]) == ("bad", "for 60 more steps")


def test_the_largest_value_that_fits_is_said_to_last_only_so_long():
    tried = Attempt(what="batch_size=8", value=8, fits=True, needs=40 << 20, has=100 << 20)
    search = Search(argument="batch_size", least=1, most=64, by=1, found=8, attempts=(tried,))
    card = Environment(device="NVIDIA A10")
    document = Report(verdict=FINE, environment=card, memory=(grown(),), search=search)
    assert with_search(document, FINE).sentence == (
        "Memory grows by 1 MiB in every step and would fill the GPU after 60 more; "
        "batch_size=8 is the largest with which 12 steps fit the A10"
    )


def test_a_longer_item_that_does_not_fit_is_the_verdict_on_a_run():
    longest = LongestBatch(length=900, seen=100, batches=9, needs=9 << 30, has=1 << 30, fits=False, most=300)
    fine = Verdict(sentence="At most 1 GiB reserved", level="fine")
    outcome = report(MemoryReport(sentence="", gpu="NVIDIA A10", answer=fine, longest=longest)).verdict
    assert outcome.level == "failed"
    assert outcome.sentence == (
        "Does not fit with the longest item: 900 long, it needs 9 GiB, the A10 has 1 GiB: 8 GiB short"
    )
    assert outcome.why[0] == fine.sentence
    assert outcome.do_first[0].what.startswith("cut items to 300")


def test_a_run_that_does_not_grow_fits():
    memory = msgspec.structs.replace(grown(), growth=(), holders=(), findings=())
    assert of_script(memory).sentence.startswith("Fits: peak 40 of 100 MiB reserved. Nothing worth fixing")


def test_growth_that_a_bound_ends_in_time_is_none():
    full = grown().holders[0]
    bounded = msgspec.structs.replace(full, entries=10, each=1 << 20, most=30)
    memory = msgspec.structs.replace(grown(), holders=(bounded,))
    assert findings(memory) == ()
    short = msgspec.structs.replace(bounded, most=90)
    (finding,) = findings(msgspec.structs.replace(memory, holders=(short,)))
    assert finding.evidence[-1] == "`bank` holds at most 90 entries: 80 MiB more until it is full"


def test_memory_that_is_of_no_use_is_something_worth_fixing():
    cost = GraphCost(line=line(20), bytes=30 << 20, without=1 << 20, needs=12 << 20)
    memory = MemoryReport(
        sentence="At most 40 MiB reserved",
        baseline=Outcome(peak_allocated=40 << 20, peak_reserved=40 << 20),
        unused_graphs=(cost,),
    )
    memory = msgspec.structs.replace(memory, findings=findings(memory), answer=answer(memory))
    outcome = of_script(memory)
    assert outcome.level == "act"
    assert outcome.sentence == (
        "No syncs in 10 training steps; `torch.no_grad()` around the evaluation lowers the memory's peak "
        "from 40 MiB to 12 MiB"
    )
    (change,) = outcome.do_first
    assert (change.line, change.before, change.after) == (line(20), 40 << 20, 12 << 20)


def test_a_finding_on_the_memory_is_not_called_nothing():
    often = Frequency(when="no-steps", waits=0.0)
    nearly = Finding(
        code="GAP404", name="memory-nearly-full", line=None, frequency=often, remedy="leave room"
    )
    outcome = of_script(MemoryReport(sentence="", findings=(nearly,)))
    assert (outcome.sentence, outcome.level) == (
        "No syncs in 10 training steps; the GPU's memory is nearly full",
        "act",
    )


def test_expandable_segments_are_listed_where_they_help():
    base = Outcome(
        peak_allocated=50 << 20, peak_reserved=90 << 20, retries=3, mallocs=9, frees=9, price=10**6
    )
    better = Outcome(peak_allocated=50 << 20, peak_reserved=60 << 20, maps=3, price=10**5)
    memory = MemoryReport(
        sentence="",
        baseline=base,
        expandable=better,
        trials=(Trial(settings="expandable_segments:True", outcome=better),),
        best=0,
        advised="expandable_segments:True",
        limit=100 << 20,
    )
    memory = msgspec.structs.replace(memory, findings=findings(memory), answer=answer(memory))
    assert {"GAP406", "GAP408"} <= {finding.code for finding in memory.findings}
    (change,) = of_script(memory).do_first
    assert (change.what, change.before, change.after, change.unit) == (
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        3,
        0,
        "retries",
    )
