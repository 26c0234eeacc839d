"""Names of modules: chains of calls, names for many, classes from the source."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.memory.frames import PlaceTable, library_of
from gapless.memory.modules import chain_of, fold_numbers, fold_part, part_name, with_classes
from gapless.memory.recorder import Recorder
from gapless.model.memory import MODULE
from gapless.model.source import SourceLine

SITE = "/opt/lib/python3.11/site-packages"
SOURCE = """\
class Net(Base):
    def __init__(self):
        self.block = Block()

    def forward(self, x):
        return [self.block(one) for one in x]


class Block(Base):
    class Inner:
        def forward(self, x):
            return x

    def forward(self, x):
        return x + 1


def forward(x):
    return x
"""


def line(file: str, number: int, function: str = "forward") -> SourceLine:
    return SourceLine(file, number, function, library=library_of(file))


CALL = line(f"{SITE}/torch/nn/modules/module.py", 1527, "_call_impl")


@pytest.mark.parametrize(
    ("stack", "chain"),
    [
        ([], ""),
        ([line("/me/train.py", 3, "main")], ""),
        ([line("/me/a.py", 9), CALL, line("/me/a.py", 20), line("/me/b.py", 1, "f")], "a.py:20 > a.py:9"),
        ([line(f"{SITE}/torch/nn/modules/linear.py", 114), CALL, line("/me/a.py", 2)], "a.py:2 > nn.linear"),
        ([line(f"{SITE}/torch/nn/modules/container.py", 5), line("C:\\\\me\\\\a.py", 2)], "a.py:2"),
        ([line(f"{SITE}/torch/_functorch/aot.py", 5), line("/me/a.py", 2)], "a.py:2"),
        ([line("/me/a.py", 9, "Block.forward"), line("/me/a.py", 2, "f.Net.forward")], "Net > Block"),
        ([line(f"{SITE}/transformers/llama.py", 9)], "llama.py:9"),
    ],
)  # fmt: skip
def test_chains(stack, chain):
    assert chain_of(stack) == chain


@pytest.mark.parametrize(
    ("module", "name", "part", "single"),
    [
        ("h[3].mlp", "h[*].mlp", "h[*]", "h[3]"),
        ("enc.layer[11].self", "enc.layer[*].self", "enc.layer[*]", "enc.layer[11]"),
        ("experts[1].layers[2].up", "experts[*].layers[*].up", "experts[*]", "experts[1]"),
        ("lm_head", "lm_head", "lm_head", "lm_head"),
        ("model.embed.tokens", "model.embed.tokens", "model.embed", "model.embed"),
        ("mlp.0", "mlp.0", "mlp.0", "mlp.0"),
        ("A > B > C", "A > B > C", "A > B", "A > B"),
        ("", "", "", ""),
    ],
)  # fmt: skip
def test_names_for_many(module, name, part, single):
    assert (fold_numbers(module), fold_part(module), part_name(module)) == (name, part, single)


@given(st.lists(st.sampled_from(["h[0]", "h[12]", "mlp", "0", "a_b"]), max_size=5).map(".".join))
def test_a_part_is_a_beginning(module):
    assert fold_numbers(module).startswith(fold_part(module))
    assert fold_numbers(fold_numbers(module)) == fold_numbers(module)
    assert module.startswith(part_name(module))


def with_module_names(stack: list[SourceLine], text: str) -> str:
    frames = [{"filename": line.file, "line": line.line, "name": line.function} for line in stack]
    places = PlaceTable()
    at = places.of_frames(frames)
    recorder = Recorder()
    recorder.alloc("x", 8, stack=stack, kind="activation")
    run = recorder.run()
    run = msgspec.structs.replace(run, places=tuple(places.places), lines=tuple(places.lines))
    return with_classes(run, lambda file: text).places[at].module


def test_classes_come_from_the_source():
    assert with_module_names([line("/me/a.py", 15), line("/me/a.py", 6)], SOURCE) == "Net > Block"
    assert with_module_names([line("/me/a.py", 12)], SOURCE) == "Inner"
    assert with_module_names([line("/me/a.py", 19)], SOURCE) == "a.py:19"
    comprehension = [line("/me/a.py", 15), line("/me/a.py", 6, "<listcomp>"), line("/me/a.py", 6)]
    assert with_module_names(comprehension, SOURCE) == "Net > Block"


@pytest.mark.parametrize("text", ["", "def forward(:", "\0", "#\n" * 4 + SOURCE])
def test_another_source_names_nothing(text):
    stack = [line("/me/a.py", 15), line("/me/a.py", 6), line("/me/a.py", 3, "__init__")]
    assert with_module_names(stack, text) == "a.py:6 > a.py:15"


def test_metadata_of_a_request_names_its_module():
    places = PlaceTable()
    frames = [{"filename": "/me/a.py", "line": 9, "name": "forward"}]
    place_index = places.of_entry({"frames": frames, "user_metadata": MODULE + "h[3].mlp"})
    assert places.places[place_index].module == "h[3].mlp"
    assert places.of_entry({"frames": frames, "user_metadata": MODULE + "h[3].mlp"}) == place_index
    other = places.of_entry({"frames": frames, "user_metadata": "iteration 3"})
    assert places.places[other].module == "a.py:9"
    assert (
        places.of_entry({"frames": frames})
        == places.of_entry({"frames": frames, "user_metadata": 3})
        == other
    )
