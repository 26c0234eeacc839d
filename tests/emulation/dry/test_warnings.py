"""The emulation warns of nothing that PyTorch itself does not warn of."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

import gapless
from gapless.emulation.dry.guesses.guess import anything
from gapless.emulation.emulator import Emulator, current
from gapless.emulation.options import EmulatorOptions
from tests.emulation.dry.memory import CUDA

EVERY = 24
"""Of the entries of `op_db` this one is taken, and of each its first sample."""
ENTRIES = [entry for entry in op_db[::EVERY] if torch.float32 in entry.dtypes]


def warned(entry, sample, device, unknown=False):
    """What calling the operator and its backward warns of; None where it fails."""

    def put(tensor):
        if not isinstance(tensor, torch.Tensor):
            return tensor
        placed = tensor.detach().clone().to(device)
        if unknown and placed.is_floating_point() and placed.dim():  # what has no dimension is known
            current().core.values.mark(placed, anything("draw", placed.dtype))
        return placed.requires_grad_(placed.is_floating_point())

    arguments = sample.transform(put)
    with warnings.catch_warnings(record=True) as emulation:
        warnings.simplefilter("always")
        try:
            out = entry(arguments.input, *arguments.args, **arguments.kwargs)
            if isinstance(out, torch.Tensor) and out.requires_grad and not out.is_complex():
                out.sum().backward()
        except (AssertionError, RuntimeError, ValueError, TypeError):
            return None
    return {str(warning.message).splitlines()[0] for warning in emulation}


@pytest.fixture(autouse=True)
def each_time():
    """Warnings that PyTorch gives once are given each time."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


@pytest.mark.parametrize("dry", [False, True])
def test_operators_warn_of_what_they_warn_of_on_a_cpu(dry):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = [
            (entry, next(iter(entry.sample_inputs("cpu", torch.float32, requires_grad=True))))
            for entry in ENTRIES
        ]
    plain = [warned(entry, sample, "cpu") for entry, sample in samples]
    own = {}
    with gapless.emulate(dry=dry):
        for (entry, sample), said in zip(samples, plain, strict=True):
            messages = warned(entry, sample, CUDA, unknown=dry) if said is not None else None
            if messages and messages - said:
                own[entry.name] = messages - said
    assert not own
    assert sum(said is not None for said in plain) > 20


def test_a_compiled_module_brings_no_warning_of_hooks() -> None:
    with Emulator(EmulatorOptions(compiled=True)), warnings.catch_warnings(record=True) as caught:
        module = torch.compile(torch.nn.Linear(4, 4).cuda(), backend="eager")
        module(torch.ones(2, 4, device="cuda"))
    assert [str(warning.message) for warning in caught if "global hooks" in str(warning.message)] == []
