"""Which copies wait, against a reckoning of its own: what PyTorch asks of the driver, call by call."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from gapless.model import copies
from gapless.model.copies import Copy

CAPABILITIES = [(7, 0), (7, 5), (8, 0), (9, 0), (10, 0)]
SIZES = [0, 1, 4096, 65_536, 65_537, 131_072, 131_073, 8 << 20]


def table_row(to_device: bool, memory: str, size: int, non_blocking: bool, strided: bool) -> list[tuple]:
    """The calls that the host makes: copies with the memory that the driver sees, and synchronizations."""
    if size == 0:
        return []
    text = "pageable" if strided else memory
    return [("copy", to_device, text, size), *([] if non_blocking else [("synchronize",)])]


def holds(call: tuple, capability: tuple[int, int]) -> bool | None:
    """What the documents and the profiles say of one call."""
    if call[0] == "synchronize":
        return True
    _, to_device, memory, size = call
    if memory == "pinned":
        return False
    if memory == "pageable":
        if not to_device:
            return True
        if size <= 65_536 or (size <= 131_072 and capability in [(8, 0), (9, 0)]):
            return False
        return True if size > 131_072 else None
    return None


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_who_waits(capability):
    memories = ["pageable", "pinned", "managed", "unknown"]
    for case in itertools.product([True, False], memories, SIZES, [True, False], [True, False]):
        to_device, memory, size, non_blocking, strided = case
        each = [holds(call, capability) for call in table_row(*case)]
        expected = True if True in each else None if None in each else False
        copy = Copy(
            to_device=to_device, memory=memory, nbytes=size, non_blocking=non_blocking, strided=strided
        )
        assert copies.waits(copy, capability) is expected, case


def test_a_gpu_that_is_not_known_is_one_that_was_not_measured():
    copy = Copy(to_device=True, memory="pageable", nbytes=100_000, non_blocking=True)
    assert copies.waits(copy) is None
    assert copies.waits(copy, (7, 0)) is None
    assert copies.waits(copy, (8, 0)) is False


# -- strides ---------------------------------------------------------------------------------------


def lies_as(host: torch.Tensor, device: torch.Tensor) -> bool:
    """Whether both sides have their elements at the same distances from their first, without holes."""
    here, device_places = (places(tensor) for tensor in (host, device))
    return bool(torch.equal(here, device_places)) and sorted(here.tolist()) == list(range(here.numel()))


def places(tensor: torch.Tensor) -> torch.Tensor:
    """For each element, in order of its index, where it lies behind the first."""
    index = torch.cartesian_prod(*(torch.arange(size) for size in tensor.shape)).reshape(tensor.numel(), -1)
    return (index * torch.tensor(tensor.stride())).sum(1)


@st.composite
def views(draw, shape):
    """A view of that shape: of a larger tensor, in any order of its dimensions, or broadcast."""
    order = draw(st.permutations(range(len(shape))))
    holes = draw(st.lists(st.integers(0, 1), min_size=len(shape), max_size=len(shape)))
    base = torch.zeros([shape[dim] + hole for dim, hole in zip(order, holes, strict=True)])
    view = base[tuple(slice(0, shape[dim]) for dim in order)]
    view = view.permute([order.index(dim) for dim in range(len(shape))])
    if draw(st.booleans()) and draw(st.booleans()):
        view = view[tuple(slice(0, 1) if dim == 0 else slice(None) for dim in range(len(shape)))].expand(
            shape
        )
    return view


@st.composite
def sides(draw):
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    return draw(views(shape)), draw(views(shape)), draw(st.booleans())


@given(sides())
@example((torch.zeros(4, 8)[:, :4], torch.zeros(4, 4), True))
@example((torch.zeros(8, 4).t(), torch.zeros(8, 4).t(), True))
@example((torch.zeros(8, 4).t(), torch.zeros(8, 4).t(), False))
@example((torch.zeros(8, 4).t(), torch.zeros(4, 8), True))
def test_what_needs_a_temporary_on_the_host(case):
    host, device, same = case
    expected = not host.is_contiguous() and not (same and lies_as(host, device))
    is_strided = copies.strided(tuple(host.shape), host.stride(), device.stride(), same_dtype=same)
    assert is_strided is expected


# -- time ------------------------------------------------------------------------------------------


@given(st.integers(1, 1 << 33), st.floats(1, 200), st.integers(1, 5))
def test_more_takes_longer_and_pinned_memory_never(nbytes, bandwidth, times):
    pinned, pageable = (copies.duration(nbytes, memory, bandwidth) for memory in ("pinned", "pageable"))
    assert pinned <= pageable
    assert pinned <= copies.duration(nbytes * times, "pinned", bandwidth)
    assert copies.duration(nbytes, "pinned", bandwidth * times) <= pinned
    assert nbytes / (pinned * bandwidth) <= 1
