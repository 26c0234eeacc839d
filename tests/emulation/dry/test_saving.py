"""What a dry run writes into files and streams, and how it loads files."""

from __future__ import annotations

import ctypes
import functools
import io
import pickle

import pytest
import torch
from torch import nn

import gapless
from gapless.emulation.emulator import current
from tests.emulation.dry.memory import CUDA, resident, unknown


def test_files_have_holes_in_the_place_of_values(dry, tmp_path):
    path = tmp_path / "model.pt"
    torch.save({"weight": unknown(1 << 26), "small": torch.arange(5, device=CUDA)}, path)
    assert path.stat().st_size > 1 << 28
    assert path.stat().st_blocks * 512 < 1 << 20
    loaded = torch.load(path, mmap=True)
    assert loaded["weight"].shape == (1 << 26,)
    assert loaded["small"].tolist() == [0, 1, 2, 3, 4]
    assert any("torch.save" in note for note in dry.session.notes)


def test_what_is_written_into_memory_is_as_long_and_made_of_zeros(dry):
    file = io.BytesIO()
    torch.save({"weight": unknown(1 << 20), "small": torch.arange(5, device=CUDA)}, file)
    assert len(file.getvalue()) > 4 << 20
    loaded = torch.load(io.BytesIO(file.getvalue()), map_location="cpu")
    assert not loaded["weight"].any()
    assert loaded["small"].tolist() == [0, 1, 2, 3, 4]
    assert any(note.startswith("torch.save wrote zeros") for note in dry.session.notes)


def _dirty(count):
    """A tensor without values in memory that holds something, as recycled memory does."""
    tensor = unknown(count).cpu()
    assert current().core.values.lacks([tensor])
    ctypes.memset(tensor.untyped_storage().data_ptr(), 0xFF, 4 * count)
    return tensor


def _saved(tensor, **how):
    file = io.BytesIO()
    torch.save(tensor, file, **how)
    return torch.load(io.BytesIO(file.getvalue()))


def _saved_as_safetensors(tensor):
    safetensors = pytest.importorskip("safetensors.torch")
    return safetensors.load(safetensors.save({"weight": tensor}))["weight"]


@pytest.mark.parametrize(
    "saved",
    [
        _saved,
        functools.partial(_saved, _use_new_zipfile_serialization=False),
        lambda tensor: pickle.loads(pickle.dumps(tensor)),
        _saved_as_safetensors,
    ],
    ids=["torch.save", "torch.save of old", "pickle", "safetensors"],
)
def test_zeros_are_written_whatever_is_in_memory_that_has_no_values(dry, saved):
    tensors = [_dirty((1 << 20) + more) for more in (5, 0)]
    loaded = [saved(tensor) for tensor in tensors]
    assert [tensor.shape for tensor in loaded] == [tensor.shape for tensor in tensors]
    assert not any(tensor.view(torch.uint8).any() for tensor in loaded)
    assert any("wrote zeros" in note for note in dry.session.notes)
    assert all(
        ctypes.string_at(tensor.data_ptr(), 4) == b"\xff" * 4 for tensor in tensors
    )  # and it stays as it is


@pytest.mark.parametrize("how", [{}, {"_use_new_zipfile_serialization": False}])
def test_what_is_small_is_written_as_values_of_its_type(dry, how):
    ones = _saved(torch.ones(1 << 16, device=CUDA), **how)
    assert (ones == 1).all()
    chances = _saved(unknown(100, 10).softmax(-1), **how)
    assert chances.any()
    assert ((chances >= 0) & (chances <= 1)).all()
    assert not dry.session.notes


def test_what_is_written_into_a_stream_takes_no_memory(dry):
    class Counting(io.RawIOBase):
        written = 0

        def write(self, data):
            self.written += len(data)
            return len(data)

    stream, tensor, before = Counting(), unknown(1 << 28).cpu(), resident()
    torch.save(tensor, stream)
    assert stream.written > 1 << 30
    assert resident() - before < 100 << 20


@pytest.mark.parametrize("where", [None, "cpu", CUDA])
def test_files_are_mapped_and_may_be_written_again(dry, tmp_path, where):
    path = tmp_path / "last.pt"
    saved = {"weight": torch.arange(1 << 20), "exp_avg": torch.full((1 << 20,), 2.0), "step": torch.tensor(7)}
    torch.save(saved, path)
    loaded = torch.load(path, map_location=where)
    before = {name: tensor.device for name, tensor in loaded.items()}
    assert all(device.type == (where or "cpu") for device in before.values())
    assert int(loaded["step"]) == 7
    torch.save({"step": torch.tensor(8)}, path)
    if where != CUDA:
        assert all(torch.equal(loaded[name], saved[name]) for name in saved)
    assert int(torch.load(path)["step"]) == 8
    path.unlink()
    torch.save({"step": torch.tensor(9)}, path)
    assert int(torch.load(path, mmap=False)["step"]) == 9


def test_files_that_cannot_be_mapped_are_loaded_as_ever(dry, tmp_path):
    path = tmp_path / "old.pt"
    torch.save({"step": torch.tensor(7)}, path, _use_new_zipfile_serialization=False)
    assert int(torch.load(path)["step"]) == 7
    with pytest.raises(FileNotFoundError):
        torch.load(tmp_path / "missing.pt")


def test_safetensors_say_that_they_hold_zeros(tmp_path) -> None:
    save = pytest.importorskip("safetensors.torch").save_file
    with gapless.emulate(dry=True) as emulation:
        layer = nn.Linear(4096, 4096, bias=False).cuda()
        layer.weight.untyped_storage().data_ptr()  # compared, not read
        small = nn.Linear(16, 16).cuda()
        save(small.state_dict(), tmp_path / "small.safetensors")
        assert not emulation.session.notes
        save(layer.state_dict(), tmp_path / "large.safetensors")
    assert (tmp_path / "large.safetensors").stat().st_size > 4096**2 * 4
    (note,) = emulation.session.notes
    assert "safetensors wrote zeros" in note
