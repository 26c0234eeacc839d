"""Rules over a loader that was measured: padding, bytes, beginnings of epochs; and their silence."""

from __future__ import annotations

import msgspec
import pytest

from gapless.analyze import report
from gapless.model import Hit
from gapless.model.estimate import Range
from gapless.model.loader_use import LoaderUse
from gapless.model.loading import Demand, Diagnosis, Fetch, Machine, Prediction, Setting, Transfer
from gapless.model.loading_feed import Around, BatchTensor, Begin, Padding
from gapless.rules import rule

MS = 1_000_000
PADDED = Padding(
    field="ids",
    share=0.9,
    size=512,
    lengths=(40, 50, 63) * 40,
    batch=16,
    dynamic=0.4,
    sorted=0.05,
    edges=(40, 56, 64),
    fixed=0.04,
    inside=True,
)
IMAGES = BatchTensor(name="image", kind="float32", bytes=8_000_000, least=2_000_000, to="uint8")
LABELS = BatchTensor(name="label", kind="int64", bytes=512, least=512)


def hits(code: str, use: LoaderUse) -> list[Hit]:
    return list(rule(code).of_loader(use))


def fed(step: float = 0, **fetch: object) -> LoaderUse:
    length = Range(int(0.8 * step * MS), int(step * MS), int(1.2 * step * MS))
    return LoaderUse(fetch=Fetch(**fetch), per_step=1.0, step=length)


class TestPadding:
    def test_share_what_helps_and_how_much(self):
        (hit,) = hits("GAP304", fed(padding=PADDED))
        assert hit.evidence[0] == (
            "90 % of `ids` is padding: items are 51 long on average (half are at most 50), and batches "
            "512; items arrive padded"
        )
        # 10 % of the places are values; of the places that remain 95 % are.
        assert "so 9.5 times fewer values" in hit.evidence[1]
        assert "batch_size=16, pad_to=8" in hit.remedy
        assert hit.remedy.endswith("pad to 40, 56, 64: 4.0 % is then padding")

    def test_of_an_estimated_step_the_most_that_it_saves(self):
        use = msgspec.structs.replace(fed(19, padding=PADDED), device=19 * MS)
        (hit,) = hits("GAP304", use)
        assert hit.saves == pytest.approx(17 * MS, rel=0.01)
        assert "assumes that the GPU's time" in hit.evidence[2]

    def test_no_more_than_the_work_of_the_gpu(self):
        """55 µs of work in a step of 325 µs, of whose places 10.5 % remain."""
        use = LoaderUse(fetch=Fetch(padding=PADDED), per_step=1.0, step=Range(*[325_000] * 3), device=55_000)
        (hit,) = hits("GAP304", use)
        assert hit.saves == pytest.approx(49_200, rel=0.01)
        shorter = msgspec.structs.replace(use, step=Range(*[20_000] * 3))
        assert hits("GAP304", shorter)[0].saves == pytest.approx(17_900, rel=0.01)

    def test_the_share_alone_where_the_work_of_the_gpu_is_unknown(self):
        (hit,) = hits("GAP304", fed(19, padding=PADDED))
        assert len(hit.evidence) == 2
        assert not hit.saves

    def test_no_more_than_its_part_of_the_batch(self):
        use = msgspec.structs.replace(
            fed(19, padding=msgspec.structs.replace(PADDED, part=0.5)), device=19 * MS
        )
        assert hits("GAP304", use)[0].saves == pytest.approx(8.5 * MS, rel=0.01)

    @pytest.mark.parametrize("change", [{"share": 0.15}, {"sorted": 0.89}, {"sorted": -1.0}, {"part": 0.1}])
    def test_little_padding_and_padding_that_nothing_helps(self, change):
        assert not hits("GAP304", fed(padding=msgspec.structs.replace(PADDED, **change)))
        assert not hits("GAP304", fed())


class TestBytes:
    def test_before_and_after(self):
        (hit,) = hits("GAP306", fed(columns=(LABELS, IMAGES)))
        assert hit.evidence[0] == "a batch takes 8 MB, but its values need only 2 MB: 75 % less"
        assert hit.evidence[1].startswith("`image`: float32, 8 MB → uint8, 2 MB")
        assert "at least 240 µs" in hit.evidence[2]
        assert "`image` as `uint8`" in hit.remedy
        assert hit.bytes == 8_000_512

    def test_silent_where_it_is_little_of_the_batch_or_of_the_step(self):
        raw = BatchTensor(name="raw", kind="uint8", bytes=40_000_000, least=40_000_000)
        assert not hits("GAP306", fed(columns=(IMAGES, raw)))
        assert not hits("GAP306", fed(100, columns=(IMAGES,)))
        assert hits("GAP306", fed(20, columns=(IMAGES,)))
        assert not hits("GAP306", fed(columns=(LABELS,)))


NOTHING = Begin()


def begun(begin: Begin = NOTHING, length: int = 100, **more: object) -> LoaderUse:
    setting = more.pop("setting", Setting(workers=4, prefetch=2))
    diagnosis = Diagnosis(
        length=length,
        setting=setting,
        machine=Machine(allowed=8, start="forkserver"),
        demand=Demand(step=10 * MS),
        transfer=Transfer(batches=9, start=10 * MS, boot=1500 * MS),
        begin=begin,
        now=Prediction(setting=setting, step=10 * MS, wait=0.0),
        **more,
    )
    return LoaderUse(setting=setting, length=length, per_step=1.0, step=Range(1, 1, 1), diagnosis=diagnosis)


class TestEpochs:
    def test_workers_files_and_order_are_distinguished(self):
        begin = Begin(opened=300 * MS, shuffle=260 * MS, forked=40 * MS)
        (hit,) = hits("GAP305", begun(begin))
        # 4 x 10 ms to start four, 1.5 s until the first batch, 0.3 s of which is opening files.
        assert hit.evidence[0] == (
            "each epoch begins with 1.8 s of waiting in addition to its first batch: 1.24 s starting 4 "
            "workers (forkserver), 300 ms opening the dataset's files, 260 ms shuffling"
        )
        assert hit.evidence[1].endswith("takes 1 s without it: 64 % is spent starting")
        assert "`persistent_workers=True` saves 1.54 s of it" in hit.remedy
        assert "starts a worker in 40 ms instead of 1.51 s" in hit.remedy
        assert hit.idle == 18 * MS  # per step

    def test_the_beginning_is_shared_among_steps_of_several_batches(self):
        (first,), two = hits("GAP305", begun()), msgspec.structs.replace(begun(), per_step=2.0)
        (hit,) = hits("GAP305", two)
        assert hit.evidence[1].replace("50 steps", "100 steps") == first.evidence[1]
        assert (hit.every, hit.idle) == (50, 2 * first.idle)

    @pytest.mark.parametrize(
        ("library", "words"),
        [
            ("transformers", "dataloader_persistent_workers=True"),
            ("skorch", "iterator_train__persistent_workers=True"),
            ("", "persistent_workers=True"),
        ],
    )
    def test_in_the_words_of_the_library_that_makes_the_loader(self, library, words):
        (hit,) = hits("GAP305", msgspec.structs.replace(begun(), library=library))
        assert hit.change == f"`{words}`"
        assert hit.remedy.startswith(f"`{words}` saves ")

    def test_kept_workers_leave_what_a_stream_does_anew(self):
        kept = Setting(workers=4, prefetch=2, persistent=True)
        (hit,) = hits("GAP305", begun(Begin(again=200 * MS, opened=90 * MS), setting=kept))
        assert hit.evidence[0].startswith(
            "each epoch begins with 200 ms of waiting in addition to its first batch"
        )
        assert "starting" not in hit.evidence[0]
        assert "persistent_workers" not in hit.remedy
        assert "let one pass span several epochs" in hit.remedy

    def test_workers_of_a_loader_that_each_pass_makes_cannot_be_kept_as_it_is(self):
        (hit,) = hits("GAP305", begun(around=Around(name="gen", batches=2.0, anew=True)))
        assert "create the DataLoader once" in hit.remedy
        assert "an epoch of 50 steps" in hit.evidence[1]

    @pytest.mark.parametrize(
        "use",
        [
            begun(length=100_000),  # long epochs
            begun(length=-1),
            begun(setting=Setting()),
            begun(around=Around(name="Pipe")),  # what has no DataLoader in it
            begun(setting=Setting(workers=4, persistent=True)),
        ],
    )
    def test_silent(self, use):
        assert not hits("GAP305", use)

    def test_of_a_loader_that_keeps_up_what_the_run_saw(self):
        loader_use = LoaderUse(
            setting=Setting(workers=2),
            length=50,
            per_step=1.0,
            passes=3,
            ended=2,
            batches=120,
            wait=0.2 * MS,
            first=90.2 * MS,
            step=Range(9 * MS, 10 * MS, 11 * MS),
            fetch=Fetch(),
        )
        (hit,) = hits("GAP305", loader_use)
        assert "90 ms until 2 workers have started, as observed in this run" in hit.evidence[0]
        assert not hits("GAP305", msgspec.structs.replace(loader_use, ended=0))
        assert not hits("GAP305", msgspec.structs.replace(loader_use, passes=50, batches=50, ended=0))


def test_a_loader_measured_by_itself_is_asked_the_same():
    diagnosis = Diagnosis(fetch=Fetch(padding=PADDED, columns=(IMAGES,)), demand=Demand(step=10 * MS))
    findings = report(diagnosis).findings
    assert {finding.code for finding in findings} == {"GAP304", "GAP306"}
    assert "(estimated)" not in " ".join(sentence for finding in findings for sentence in finding.evidence)


class TestUnusedColumns:
    def test_named_with_what_they_take(self):
        use = msgspec.structs.replace(fed(columns=(LABELS, IMAGES)), untouched=("image",))
        (hit,) = hits("GAP307", use)
        assert hit.evidence == (
            "the loop never uses `image` (float32, 8 MB)",
            "a batch takes 8 MB, without it 512 B: 100 % less",
        )

    def test_a_small_one_is_no_matter(self):
        assert not hits(
            "GAP307", msgspec.structs.replace(fed(columns=(LABELS, IMAGES)), untouched=("label",))
        )
        assert not hits("GAP307", fed(columns=(LABELS, IMAGES)))
