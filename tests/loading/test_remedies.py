"""Other ways to make the same batches: the code gives them in the same order, without side effects."""

from __future__ import annotations

import ast
import dataclasses
import os
import signal
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from gapless.analyze import report
from gapless.loading import diagnose
from gapless.loading.forked import LoaderError, can_fork, run_in_copy
from gapless.loading.lines import source_line
from gapless.loading.loader_call import read_call
from gapless.loading.number_lists import try_tensors
from gapless.loading.predict import predict_again
from gapless.loading.whole_batches import is_same, try_whole_batches
from gapless.model.loading import (
    BatchRemedy,
    Demand,
    Diagnosis,
    Doubt,
    Fetch,
    Machine,
    Prediction,
    Setting,
    Transfer,
    decode,
    encode,
)
from gapless.render import Style, renderer

MS = 1_000_000
SLOW = Fetch(batches=((10**12, 0),), batch_size=4)
"""What a batch cost before: anything is cheaper."""
PRELUDE = """
import random
import numpy as np
import torch
import torch.utils.data as data_utils
from torch.utils.data import *
from torch.utils.data.distributed import DistributedSampler

class Rows(Dataset):
    def __init__(self):
        self.x, self.y = np.arange(60.0).reshape(30, 2), np.arange(30)
    def __len__(self):
        return len(self.x)
    def __getitem__(self, index):
        return {"x": self.x[index], "y": self.y[index]}

class Next(Rows):
    def __len__(self):
        return len(self.x) - 1
    def __getitem__(self, index):
        return torch.from_numpy(self.x)[index + 1]

class Items(Rows):
    def __init__(self, make):
        super().__init__()
        self.make = make
    def __getitem__(self, index):
        return self.make(index)

class Counting(Rows):
    reads = 0
    def __getitem__(self, index):
        self.reads += 1
        return self.x[index]

class Overwriting(Rows):
    buffer = torch.zeros(0, 2)
    def __getitem__(self, index):
        rows = torch.as_tensor(index).reshape(-1)
        batch = torch.index_select(torch.from_numpy(self.x), 0, rows, out=self.buffer.double())
        self.buffer = batch
        return batch if isinstance(index, list) else batch[0]

class Lists(Dataset):
    def __init__(self, make=lambda index: {"ids": list(range(index, index + 5)), "label": index % 2}):
        self.items = [make(index) for index in range(30)]
    def __len__(self):
        return len(self.items)
    def __getitem__(self, index):
        return self.items[index]

class Augmented(Lists):
    def __init__(self, make):
        super().__init__()
        self.make_more = make
    def __getitem__(self, index):
        return {**self.items[index], "more": self.make_more()}

class NewLists(Lists):
    def __getitem__(self, index):
        return {**self.items[index], "ids": list(self.items[index]["ids"])}

rows, x, y, size, train = Rows(), torch.arange(60.0).reshape(30, 2), torch.arange(30), 4, True
weights = torch.arange(30.0)
"""


def create(call: str, folder: Path) -> tuple[DataLoader, Any, dict[str, Any]]:
    """Return the loader that `call` creates, the call as it is read, and the names of its file."""
    path, names = folder / "train.py", dict[str, Any]()
    text = f"{PRELUDE}\nloader = {call}\n"
    path.write_text(text)
    exec(compile(text, str(path), "exec"), names)
    return names["loader"], read_call(names["loader"], source_line(str(path), text.count("\n"), "")), names


def follow(code: str, names: dict[str, Any]) -> DataLoader:
    """Return the loader that `code` creates after the file's own lines."""
    *before, call = ast.parse(code).body
    assert isinstance(call, ast.Expr)
    exec(compile(ast.Module(before, []), "before", "exec"), names)
    loader: DataLoader = eval(compile(ast.Expression(call.value), "call", "eval"), names)
    return loader


def epochs(loader: DataLoader) -> list[Any]:
    """Return the batches of two epochs after one seed."""
    torch.manual_seed(7)
    return [*loader, *loader]


@pytest.mark.parametrize(
    "call",
    [
        "DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)",
        "DataLoader(rows, size, True, num_workers=0, drop_last=True)",
        "data_utils.DataLoader(rows, 4, shuffle=train, pin_memory=False)",
        "DataLoader(rows, batch_size=7, collate_fn=None)",
        "DataLoader(rows, 4, shuffle=True, generator=torch.Generator().manual_seed(3))",
        "DataLoader(rows, 4, sampler=DistributedSampler(rows, num_replicas=2, rank=1))",
        "DataLoader(rows, 4, sampler=WeightedRandomSampler(weights, 20))",
        "DataLoader(rows, batch_sampler=BatchSampler(SequentialSampler(rows), 3, False))",
        "DataLoader(Subset(rows, list(range(5, 25))), 4, shuffle=True)",
        "DataLoader(Next(), 4, shuffle=True)",
    ],
)
def test_whole_batches_come_as_before_by_the_code_as_it_is_written(call: str, tmp_path: Path) -> None:
    loader, read, names = create(call, tmp_path)
    remedy = try_whole_batches(loader, SLOW, read, 5.0)
    assert remedy is not None
    loader = create(call, tmp_path)[0]  # a generator as it was
    followed = follow(remedy.code, names)
    assert followed.batch_size is None
    assert len(followed) == len(loader)
    assert is_same(epochs(followed), epochs(loader))


@pytest.mark.parametrize(
    "dataset",
    [
        "Items(lambda index: torch.rand(3))",
        "Items(lambda index: (x[index] - x[index].mean(), y[index]))",
        "Items(lambda index: x[int(index)])",
        "Items(lambda index: x[index].squeeze(0))",
        "Items(lambda index: float(y[index]) if isinstance(index, int) else y[index])",
        "Items(lambda index: str(index))",
        "ConcatDataset([rows, rows])",
        "Items(lambda index: x.T[:, index].swapaxes(0, -1))",
        "Items(lambda index: y[index].clamp(max=20) if isinstance(index, int) else y[index])",
        "Items(lambda index: x[index] * (1 if random.random() < 0.9999 else 2))",
        "Counting()",
        "Overwriting()",
    ],
)
def test_nothing_is_advised_for_whole_batches_that_differ_or_fail(dataset: str, tmp_path: Path) -> None:
    loader, read, _ = create(f"DataLoader({dataset}, 4)", tmp_path)
    assert try_whole_batches(loader, SLOW, read, 5.0) is None


def test_nothing_is_advised_where_it_gains_nothing_or_takes_too_long(tmp_path: Path) -> None:
    loader, read, _ = create("DataLoader(rows, 4)", tmp_path)
    fast = msgspec.structs.replace(SLOW, batches=((1, 0),))
    assert try_whole_batches(loader, fast, read, 5.0) is None
    slow = msgspec.structs.replace(SLOW, item=1e9)
    assert try_whole_batches(loader, slow, read, 5.0) is None
    tuples, read, _ = create("DataLoader(rows, batch_sampler=[(1, 2), (3, 4)])", tmp_path)
    assert try_whole_batches(tuples, SLOW, read, 5.0) is None
    custom, read, _ = create("DataLoader(rows, 4, collate_fn=lambda items: len(items))", tmp_path)
    assert try_whole_batches(custom, SLOW, read, 5.0) is None


@pytest.mark.parametrize("call", ["DataLoader(*[rows], 4)", "DataLoader(rows, **{'batch_size': 4})"])
def test_a_call_that_cannot_be_read_is_shortened(call: str, tmp_path: Path) -> None:
    loader, read, _ = create(call, tmp_path)
    remedy = try_whole_batches(loader, SLOW, read, 5.0)
    assert remedy is not None
    wanted = "DataLoader(dataset, sampler=BatchSampler(SequentialSampler(dataset), 4, drop_last=False), "
    assert remedy.code.splitlines()[-1] == f"{wanted}batch_size=None, ...)"


def test_a_name_that_the_call_uses_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "names.py").write_text("DataLoader(dataset(), 4)\n")
    line = source_line(str(tmp_path / "names.py"), 1, "")
    code = read_call(DataLoader(TensorDataset(torch.ones(1)), 4), line).with_whole_batches()
    assert "dataset_2 = dataset()" in code.splitlines()


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ("DataLoader(Lists(), 4, shuffle=True)", "ids"),
        ("DataLoader(NewLists(), size, shuffle=True)", "ids"),
        ("DataLoader(Lists(lambda i: ((i + 0.5,) * 6, i)), 4, shuffle=True)", 0),
        ("DataLoader(Lists(lambda i: [True, False] * 3), 4)", None),
        ("DataLoader(Lists(lambda i: {'grid': [[i] * 5] * 3, 'n': i}), 4)", "grid"),
        ("DataLoader(Lists(lambda i: {'half': [np.float32(i)] * 5}), 4)", "half"),
    ],
)
def test_lists_of_numbers_become_one_tensor_of_the_same_values(call: str, field: Any, tmp_path: Path) -> None:
    loader, read, names = create(call, tmp_path)
    remedy = try_tensors(loader, SLOW, read, 5.0)
    assert remedy is not None
    assert ("once" in remedy.change) == ("New" not in call)
    assert "tensors" in remedy.differs
    for batch, before in zip(epochs(follow(remedy.code, names)), epochs(loader), strict=True):
        column, numbers = (batch, before) if field is None else (batch[field], before[field])
        while isinstance(numbers[0], list):  # positions, and positions in these
            numbers = [torch.stack(inner, dim=1) for inner in numbers]
        assert is_same(column, torch.stack(numbers, dim=1))
        if isinstance(before, dict):
            assert all(is_same(batch[key], before[key]) for key in before if key != field)


@pytest.mark.parametrize(
    "make",
    [
        "lambda i: x[i % 30]",
        "lambda i: {'name': 'a' * 9, 'two': [1, 2]}",
        "lambda i: [1, 2.5, 3, 4, 5]",
        "lambda i: [[1, 2, 3, 4], [1, 2, 3, 4, 5]]",
    ],
)
def test_items_without_lists_of_equal_numbers_stay(make: str, tmp_path: Path) -> None:
    loader, read, _ = create(f"DataLoader(Lists({make}), 4)", tmp_path)
    assert try_tensors(loader, SLOW, read, 5.0) is None


@pytest.mark.parametrize(
    "make", ["lambda: np.random.rand(3)", "lambda: random.choice((True, False))", "lambda: x[0]"]
)
def test_items_that_are_made_anew_are_not_converted_once(make: str, tmp_path: Path) -> None:
    loader, read, names = create(f"DataLoader(Augmented({make}), 4)", tmp_path)
    remedy = try_tensors(loader, SLOW, read, 5.0)
    assert remedy is not None
    assert "collate_fn=collate" in remedy.code
    assert type(follow(remedy.code, names).dataset) is type(loader.dataset)


def test_lists_of_other_types_in_later_batches_stay(tmp_path: Path) -> None:
    loader, read, _ = create("DataLoader(Lists(lambda i: [i if i < 4 else i / 3] * 5), 4)", tmp_path)
    assert try_tensors(loader, SLOW, read, 5.0) is None


def test_names_of_the_file_are_kept(tmp_path: Path) -> None:
    loader, read, _ = create("DataLoader(NewLists(), 4)", tmp_path)
    used = dataclasses.replace(read, names=read.names | {"collate", "with_tensors", "tensor_items"})
    remedy = try_tensors(loader, SLOW, used, 5.0)
    assert remedy is not None
    assert "collate_fn=collate_2" in remedy.code
    assert "def with_tensors_2(item)" in remedy.code


def test_torch_is_imported_where_the_file_does_not(tmp_path: Path) -> None:
    loader, read, names = create("DataLoader(NewLists(), 4)", tmp_path)
    remedy = try_tensors(loader, SLOW, dataclasses.replace(read, names=frozenset()), 5.0)
    assert remedy is not None
    del names["torch"]
    assert len(list(follow(remedy.code, names))) == len(loader)


def test_workers_are_started_in_no_way_where_there_are_none(tmp_path: Path) -> None:
    call = "DataLoader(rows, 4, num_workers=1, multiprocessing_context='spawn')"
    loader, read, names = create(call, tmp_path)
    remedy = try_whole_batches(loader, SLOW, read, 5.0)
    assert remedy is not None
    assert "'spawn'" in remedy.code_with("num_workers=2")
    assert len(follow(remedy.code_with("num_workers=0"), names)) == len(loader)


class CachingFiles(Dataset):
    """Writes a file for what it is asked for: a list of positions would be one more."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rows = folder, torch.arange(40.0)

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: Any) -> torch.Tensor:
        path = self.folder / f"{index}.txt"
        if not path.exists():
            path.write_text("read")
        return self.rows[index]


def attempt(loader: DataLoader) -> bool:
    return try_whole_batches(loader, SLOW, read_call(loader, None), 5.0) is not None


@pytest.mark.skipif(not can_fork(), reason="processes cannot be copied here")
def test_trying_leaves_nothing_behind(tmp_path: Path) -> None:
    loader = DataLoader(CachingFiles(tmp_path), 4)
    for index in range(40):
        loader.dataset[index]
    before = sorted(tmp_path.iterdir())
    assert not run_in_copy(lambda tell: attempt(loader), bool, 5.0, lambda part: None, trial=True)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.skipif(not can_fork(), reason="processes cannot be copied here")
def test_a_trial_writes_to_nothing_that_is_open_and_ends_in_time(tmp_path: Path) -> None:
    near, far = socket.socketpair()
    with open(tmp_path / "log.txt", "w") as log, near, far:

        def write(tell: Any) -> bool:
            os.write(log.fileno(), b"x")
            with pytest.raises(OSError, match="non-socket"):
                near.send(b"x")
            return True

        assert run_in_copy(write, bool, 5.0, lambda part: None, trial=True)
        assert not log.tell()
        far.setblocking(False)
        with pytest.raises(BlockingIOError):
            far.recv(1)
    with pytest.raises(LoaderError):
        run_in_copy(lambda tell: signal.pause(), bool, 0.05, lambda part: None, trial=True)


@pytest.mark.skipif(not can_fork(), reason="processes cannot be copied here")
def test_a_measurement_tries_them() -> None:
    data = TensorDataset(torch.rand(4000, 4), torch.arange(4000))
    loader = DataLoader(data, batch_size=1000, shuffle=True)
    state = torch.get_rng_state()
    diagnosis = diagnose(loader, 2.0, check_advice=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert [remedy.kind for remedy in diagnosis.remedies] == ["whole"]
    assert diagnosis.remedies[0].advised is not None


WHOLE = BatchRemedy(
    kind="whole",
    code="DataLoader(rows, sampler=batches, batch_size=None)",
    change="index whole batches, not item by item",
    compared=9,
    batches=((MS, 0),) * 9,
    tensors=2,
)


def measured(step: float) -> Diagnosis:
    """Return a diagnosis of a loader whose batch takes 200 ms item by item, and 1 ms at once."""
    saved = Diagnosis(
        machine=Machine(allowed=2),
        fetch=Fetch(item=2 * MS, item_cpu=2 * MS, batch_size=100, batches=((200 * MS, 0),) * 9, tensors=2),
        transfer=Transfer(batches=5, send=MS, receive=MS),
        setting=Setting(workers=2, prefetch=2),
        length=100,
        remedies=(WHOLE,),
    )
    return predict_again(saved, Demand(step=step * MS, source="given"))


class TestAdvice:
    def test_is_one_change_with_the_setting_that_is_best_with_it(self):
        verdict = report(measured(20)).verdict
        (change,) = verdict.do_first
        assert change.what == "index whole batches, not item by item, `num_workers=0`"
        assert change.after < 22 * MS < 100 * MS < change.before
        assert any("a batch then takes 1 ms instead of 200 ms" in line for line in verdict.why)

    def test_names_the_code_in_the_finding_and_in_a_table(self):
        document = report(measured(20))
        code = "DataLoader(rows, sampler=batches, batch_size=None, num_workers=0)"
        (finding,) = (finding for finding in document.findings if finding.code == "GAP301")
        assert code in finding.remedy
        assert finding.change == document.verdict.do_first[0].what
        (table,) = (table for table in document.tables if table.title.startswith("To index whole batches"))
        assert [row.cells[1] for row in table.rows] == code.splitlines()

    @pytest.mark.parametrize(("form", "copies"), [("text", 2), ("markdown", 1)])
    def test_keeps_the_lines_of_its_code(self, form: str, copies: int):
        code = "def double(item):\n    return item, item\nDataLoader(rows, collate_fn=double)"
        remedy = msgspec.structs.replace(WHOLE, code=code)
        diagnosis = msgspec.structs.replace(measured(20), remedies=(remedy,))
        diagnosis = predict_again(diagnosis, diagnosis.demand)
        lines = renderer(form)(report(diagnosis), Style()).splitlines()
        indents = [len(line) - len(line.lstrip()) for line in lines if line.strip() == "return item, item"]
        starts = [len(line) - len(line.lstrip()) for line in lines if line.strip() == "def double(item):"]
        assert indents == [start + 4 for start in starts]
        assert len(starts) == copies  # in the table, and in the finding

    def test_without_a_step_it_is_a_rate(self):
        verdict = report(measured(0)).verdict
        assert "if the dataset is indexed with whole batches it gives" in verdict.sentence

    def test_names_the_setting_that_no_run_confirmed(self):
        slow = Prediction(setting=Setting(), step=300 * MS, wait=280 * MS)
        unconfirmed = msgspec.structs.replace(measured(20), remedies=(), recommended={}, now=slow)
        verdict = report(decode(encode(unconfirmed))).verdict
        assert "; with num_workers=" in verdict.sentence
        assert verdict.do_first[0].what.startswith("num_workers=")

    def test_is_silent_where_a_setting_does_as_well(self):
        diagnosis = measured(5000)
        assert diagnosis.remedy is None
        assert report(diagnosis).verdict.level == "fine"

    def test_is_withheld_with_the_verdict(self):
        doubtful = msgspec.structs.replace(measured(20), doubt=Doubt(kind="busy", others=1.5))
        assert doubtful.remedy is None
        assert report(doubtful).verdict.do_first == ()

    def test_is_saved_and_earlier_files_load(self):
        diagnosis = measured(20)
        assert decode(encode(diagnosis)) == diagnosis
        earlier = msgspec.json.decode(encode(diagnosis))
        del earlier["diagnosis"]["remedies"]
        assert decode(msgspec.json.encode(earlier)).remedies == ()

    def test_is_predicted_again_for_another_step(self):
        again = predict_again(measured(20), Demand(step=50 * MS, source="given"))
        assert again.remedy is not None
        assert again.remedy.advised is not None
        assert again.remedy.advised.step == pytest.approx(51 * MS, rel=0.05)
