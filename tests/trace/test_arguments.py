"""What operators were given, from files of all ages."""

from __future__ import annotations

import json

import pytest

from gapless.trace.arguments import Arguments, parse_arguments
from gapless.trace.names import SILENT
from gapless.trace.read import read_bytes


def read(*operators):
    """One operator each, with these arguments."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 10 * at, "dur": 5, "args": args}
        for at, (name, args) in enumerate(operators)
    ]
    return read_bytes(json.dumps({"traceEvents": events}, indent=1).encode(), chunk=200)


def test_sizes_types_and_values_belong_to_their_operator():
    new = {
        "Input Dims": [[2, 3], [[2, 3], [4]], []],
        "Input type": ["float", "TensorList", ""],
        "Concrete Inputs": ["", "", "[1, 1]"],
    }
    timeline = read(("aten::cat", new), ("aten::add", {}), ("aten::cat", new | {"Input Dims": [[7]]}))
    assert timeline.arguments(0) == Arguments(
        ((2, 3), ((2, 3), (4,)), ()), ("float", "TensorList", ""), ("", "", "[1, 1]")
    )
    assert timeline.arguments(0).shapes == ((2, 3), (2, 3), (4,))
    assert timeline.arguments(1) == Arguments()
    assert timeline.arguments(2).shapes == ((7,),)
    assert len(timeline.encoded_arguments) == 2


def test_old_files_write_another_word():
    assert read(("aten::mm", {"external id": "7", "Input dims": [[2, 3], [3, 4]]})).arguments(0).shapes == (
        (2, 3),
        (3, 4),
    )


def test_what_launches_nothing_is_not_read():
    name = min(SILENT)
    assert read((name, {"Input Dims": [[2]]})).arguments(0) == Arguments()


@pytest.mark.parametrize("sizes", ["none", 7, None, {}, [7, "a", [1.5], [[True, "b"]]]])
def test_sizes_that_are_none_give_no_shapes(sizes):
    assert read(("aten::mm", {"Input Dims": sizes})).arguments(0).shapes == ()


def test_bytes_that_are_no_json_are_nothing():
    assert parse_arguments(b"[[1,\0\xff\0[") == Arguments()
