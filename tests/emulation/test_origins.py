"""Where values on the CPU come from, by the site of the wait for them."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import gapless
from gapless.emulation.emulator import Emulator
from gapless.emulation.origins.tags import keeps_attributes
from gapless.model import Site
from gapless.model.cause import Origin

pytestmark = pytest.mark.skipif(not keeps_attributes(), reason="this torch keeps no attributes of storages")

Step = Callable[[int], object]
GPU = "cuda"


def sites(step: Step, steps: int = 6) -> list[Site]:
    """Return the sites of `step`, called with numbers of steps."""
    with Emulator() as emulator:
        for number in range(steps):
            step(number)
            gapless.step()
        return list(emulator.session().sites)


def origins(step: Step, mechanism: str = "h2d", steps: int = 6) -> list[Origin | None]:
    return [site.cause for site in sites(step, steps) if site.mechanism == mechanism]


def kinds(step: Step, mechanism: str = "h2d", steps: int = 6) -> list[str]:
    causes = origins(step, mechanism, steps)
    return [cause.kind if cause is not None else "" for cause in causes]


def host_line(step: Step) -> str:
    """Return the source of the line that the first copy to the device comes from."""
    origin = origins(step)[0]
    assert origin is not None
    assert origin.line is not None
    return origin.line.code


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t,
        lambda t: t[1:3],
        lambda t: t + 1,
        lambda t: torch.cat([t, torch.zeros(1, dtype=t.dtype)]),
        lambda t: torch.stack([torch.ones_like(t), t]),
        lambda t: torch.zeros(4, dtype=t.dtype).copy_(t),
        lambda t: torch.from_numpy(t.numpy()[1:]),
        lambda t: torch.as_tensor(t.numpy()),
        lambda t: list(t)[2],
    ],
)
def test_values_copied_back_are_followed(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def step(number: int) -> None:
        on_gpu = torch.arange(4, device=GPU)
        back = on_gpu.cpu()
        change(back).to(GPU)

    assert kinds(step) == ["copied-back"]
    assert host_line(step) == "back = on_gpu.cpu()"


def test_an_index_is_followed_to_its_copy() -> None:
    def step(number: int) -> None:
        rows = torch.rand(5, 2, device=GPU)
        index = rows[:, 0].argsort().to("cpu")
        for each in index.split(1):
            rows[each]

    (origin,) = origins(step)
    assert origin is not None
    assert (origin.kind, origin.name, origin.calls) == ("copied-back", "Tensor.to", 25)


def test_arrays_of_new_memory_only_probably_come_from_the_device() -> None:
    def step(number: int) -> None:
        array = torch.rand(4, device=GPU).cpu().numpy()
        torch.from_numpy(np.sort(array)).to(GPU)
        torch.tensor(torch.rand(4, device=GPU).cpu().tolist()).to(GPU)

    for origin in origins(step):
        assert origin is not None
        assert origin.kind == "numpy"
        assert origin.source is not None
        assert ".cpu()" in origin.source.code


def test_numbers_beside_an_array_are_not_said_to_come_from_it() -> None:
    def step(number: int) -> None:
        torch.rand(4, device=GPU).cpu().numpy()
        torch.tensor([number, 3], device=GPU)

    (origin,) = origins(step)
    assert origin is not None
    assert (origin.kind, origin.source) == ("made", None)


def test_what_is_copied_unchanged_in_each_step() -> None:
    table, bytes_ = torch.arange(70_000), torch.zeros(3)

    def step(number: int) -> None:
        table.to(GPU)
        bytes_.to(GPU)
        bytes_.to(GPU)

    assert set(kinds(step)) == {"unchanged"}
    assert all(origin is not None and origin.certain for origin in origins(step))


def test_equal_bytes_are_not_unchanged() -> None:
    def step(number: int) -> None:
        torch.tensor([number == 99]).to(GPU)
        torch.zeros(4).to(GPU)

    assert kinds(step) == ["made", "made"]


def test_buffers_refilled_in_place() -> None:
    slots = [torch.empty(4) for _ in range(2)]
    shared = torch.empty(1 << 18)
    arrays: list[np.ndarray] = []

    def by_torch(number: int) -> None:
        slots[number % 2].copy_(torch.rand(4)).to(GPU)

    def by_numpy(number: int) -> None:
        arrays[:] = arrays or [shared.numpy()]
        arrays[0][number] = number + 1  # one element, which no sample need hold
        shared.to(GPU)

    for step in (by_torch, by_numpy):
        (site,) = [site for site in sites(step, 9) if site.mechanism == "h2d"]
        assert site.cause is not None
        assert (site.cause.kind, site.cause.refilled) == ("refilled", True)


def test_what_changes_now_and_then_is_neither() -> None:
    table = torch.zeros(3)

    def step(number: int) -> None:
        if number % 3 == 0:
            table.add_(1)
        table.to(GPU)

    assert kinds(step) == [""]


def test_a_table_that_a_schedule_replaces_or_writes_once_is_not_unchanged() -> None:
    tables = [torch.zeros(3), torch.ones(3)]

    def replaced(number: int) -> None:
        tables[number >= 20].to(GPU)

    def written(number: int) -> None:
        if number == 20:
            tables[0].add_(1)
        tables[0].to(GPU)

    assert kinds(replaced, steps=30) == kinds(written, steps=30) == [""]


def test_tables_in_turn_are_not_the_same_one() -> None:
    tables = [torch.zeros(3), torch.ones(3)]

    def step(number: int) -> None:
        tables[number % 2].to(GPU)

    assert kinds(step, steps=12) == [""]


@pytest.mark.parametrize(("steps", "expected"), [(4, ""), (5, "unchanged")])
def test_few_steps_are_not_said_to_be_all(steps: int, expected: str) -> None:
    table = torch.zeros(3)

    def step(number: int) -> None:
        for _ in range(10):
            table.to(GPU)

    assert kinds(step, steps=steps) == [expected]


def by_data(values: torch.Tensor, number: int) -> None:
    values.data[4096 + number] = number + 1


def in_inference_mode(values: torch.Tensor, number: int) -> None:
    with torch.inference_mode():
        values[4096 + number] = number + 1


def by_another_process(values: torch.Tensor, number: int) -> None:
    address = values.data_ptr() + 4 * (4096 + number)
    ctypes.c_float.from_address(address).value = number + 1


@pytest.mark.parametrize("write", [by_data, in_inference_mode, by_another_process])
def test_writes_that_no_version_counts_are_noticed(
    write: Callable[[torch.Tensor, int], None],
) -> None:
    with torch.inference_mode(write is in_inference_mode):
        values = torch.zeros(1 << 17)
    if write is by_another_process:
        values.share_memory_()

    def step(number: int) -> None:
        write(values, number)
        values.to(GPU)

    assert kinds(step) == ["refilled"]


def test_a_buffer_that_is_overwritten_has_a_new_origin() -> None:
    buffer = torch.zeros(4)

    def step(number: int) -> None:
        buffer.copy_(torch.rand(4, device=GPU) if number < 3 else torch.rand(4))
        buffer.to(GPU)

    assert kinds(step, steps=40) == ["refilled"]


@pytest.mark.parametrize(
    "mix", [lambda x, back: x * back, lambda x, back: x[back.long()], lambda x, back: torch.cat([x, back])]
)
def test_data_scaled_or_selected_by_what_was_copied_back_was_not_on_the_gpu(
    mix: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    data = torch.rand(4)

    def step(number: int) -> None:
        mix(data, torch.ones(4, device=GPU).cpu()).to(GPU)

    assert kinds(step) == [""]


def filled_with(row: torch.Tensor) -> torch.Tensor:
    buffer = torch.zeros(2, 4)
    buffer[1] = row
    return buffer


@pytest.mark.parametrize(
    "mix",
    [
        lambda data: data * torch.rand(4),
        lambda data: torch.zeros(4, 4).scatter(1, torch.arange(4).unsqueeze(1), 1.0),
        lambda data: torch.cat([torch.ones(4), torch.rand(4)]),
        lambda data: torch.zeros(4).add_(data),
        filled_with,
    ],
)
def test_what_met_another_tensor_on_the_cpu_cannot_be_made_on_the_gpu_alone(
    mix: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    data = torch.rand(4)
    assert kinds(lambda number: mix(data).to(GPU)) == [""]


@pytest.mark.parametrize("alone", [lambda x: x * 2, lambda x: x[:2], lambda x: x.add_(1), lambda x: x * x])
def test_what_met_no_other_tensor_can(alone: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert kinds(lambda number: alone(torch.rand(4)).to(GPU)) == ["made"]


def test_what_a_helper_makes_for_the_cpu_too_stays_there() -> None:
    def labels() -> torch.Tensor:
        return torch.arange(4)

    def step(number: int) -> None:
        torch.zeros(4, 4).scatter(1, labels().unsqueeze(1), 1.0)
        labels().to(GPU)

    assert kinds(step) == [""]


def test_one_helper_makes_what_three_lines_copy() -> None:
    def causal(size: int) -> torch.Tensor:
        return torch.ones(size, size).tril()

    def step(number: int) -> None:
        causal(3).to(GPU)
        causal(3).cuda()
        torch.zeros(3, 3, device=GPU) * causal(3).to(GPU)

    lines = [(origin.kind, origin.name, origin.line) for origin in origins(step) if origin is not None]
    assert len(lines) == 3
    assert len(set(lines)) == 1
    assert lines[0][:2] == ("made", "torch.ones")


def test_batches_are_known_after_arithmetic() -> None:
    loader = DataLoader(TensorDataset(torch.rand(12, 3)), batch_size=2)

    def run() -> list[Site]:
        with Emulator() as emulator:
            for (x,) in loader:
                (x * 2).to(GPU)
                gapless.step()
            return list(emulator.session().sites)

    (site,) = run()
    assert site.cause is not None
    assert site.cause.kind == "batch"


def loop_over(values: torch.Tensor) -> None:
    for value in values:
        value.item()


def comprehension_over(values: torch.Tensor) -> None:
    [float(value) for value in values]


def numbered_over(values: torch.Tensor) -> None:
    for _, row in enumerate(values.unbind(0)):
        bool(row > 1) if row.dim() else row.item()


def over_rows(values: torch.Tensor) -> None:
    for row in values.view(2, -1):
        row.tolist()


@pytest.mark.parametrize("walk", [loop_over, comprehension_over, numbered_over, over_rows])
def test_elements_of_a_tensor_that_a_loop_walks_over(walk: Callable[[torch.Tensor], None]) -> None:
    def step(number: int) -> None:
        walk(torch.rand(4, device=GPU))

    assert set(kinds(step, "read")) == {"element"}


def unpacked(values: torch.Tensor) -> None:
    first, second = values
    first.item()
    second.item()


def written(values: torch.Tensor) -> None:
    for value in values:
        values[0] += 1
        value.item()


def after_the_loop(values: torch.Tensor) -> None:
    for value in values:
        value + 1
    values[1].item()


def computed(values: torch.Tensor) -> None:
    for value in values:
        (value + 1).item()


@pytest.mark.parametrize("other", [unpacked, written, after_the_loop, computed])
def test_other_reads_are_no_elements(other: Callable[[torch.Tensor], None]) -> None:
    def step(number: int) -> None:
        other(torch.rand(2, device=GPU))

    assert "element" not in kinds(step, "read")


def test_an_index_into_a_table_on_the_cpu() -> None:
    table = torch.linspace(0, 1, 8)

    def step(number: int) -> None:
        table[torch.tensor(3, device=GPU)]
        table.to(GPU)[torch.tensor(3, device=GPU)]

    assert kinds(step, "read") == ["cpu-table", ""]


def test_a_part_of_what_was_copied_back_is_no_table() -> None:
    def step(number: int) -> None:
        values = torch.rand(4, device=GPU)
        values.cpu()[values.argmax()]

    assert kinds(step, "read") == [""]


def test_nothing_is_kept_alive() -> None:
    kept: list[weakref.ref[object]] = []

    def step(number: int) -> None:
        device = torch.rand(4, device=GPU)
        host, new = device.cpu(), torch.ones(3)
        for value in device:
            value.item()
        new.to(GPU)
        host.numpy()
        kept.extend(map(weakref.ref, (device, host, new, host.untyped_storage())))

    with Emulator():
        for number in range(3):
            step(number)
            gapless.step()
        gc.collect()
        assert not any(reference() is not None for reference in kept)


def test_a_site_with_its_cause_is_saved(tmp_path: object) -> None:
    from gapless.model.session import decode, encode

    table = torch.rand(3)
    with Emulator() as emulator:
        for _ in range(5):
            table.to(GPU)
            gapless.step()
        session = emulator.session()
    assert session.sites[0].cause is not None
    assert decode(encode(session)).sites == session.sites
