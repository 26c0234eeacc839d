"""`Origins`: follows values on the CPU from where they were made, and tallies them by the site of a wait."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache, wraps
from typing import Any

import msgspec
import torch

from gapless import trees
from gapless.emulation.origins import element_loops
from gapless.emulation.origins.sameness import Sent, compare_with_last
from gapless.emulation.origins.tags import (
    BATCH,
    COPIED_BACK,
    MADE,
    NO_STORAGE,
    NUMPY,
    ORIGIN,
    SHARED,
    WRITES,
    Place,
    Tag,
    attributes_of,
    keeps_attributes,
    tag_of,
    tensors_by_name,
    users_place,
)
from gapless.emulation.origins.tallies import SiteTally
from gapless.emulation.support.local import local
from gapless.emulation.support.patches import Patches
from gapless.model import Mechanism, Site
from gapless.model.use import NamedTensors

Tensor = torch.Tensor


class Origins:
    """The origins of values on the CPU in one emulation.

    `state_of` says where a tensor is, `tick` which step mark was last, and `has_values` whether a tensor's
    memory holds its values. Where torch keeps no attributes of storages nothing is recorded.
    """

    def __init__(
        self,
        state_of: Callable[[Tensor], int],
        tick: Callable[[], int],
        has_values: Callable[[Tensor], bool],
    ) -> None:
        self.enabled = keeps_attributes()
        self._state_of, self._tick, self._has_values = state_of, tick, has_values
        self._tags: dict[tuple[Any, ...], Tag] = {}
        self._tallies: dict[int, SiteTally] = {}
        self.named: dict[int, tuple[NamedTensors, ...]] = {}  # by site, see `tensors_by_name`
        # Where and in which step values of the device left torch last, and whether for a list.
        self._left_place: Place | None = None
        self._left_tick, self._left_for_list = -1, False
        self._has_walks = False  # whether a tensor on the device was iterated over
        self.table: Tensor | None = None  # the tensor on the CPU that is being indexed

    # -- tagging -----------------------------------------------------------------------------------

    def _tag(self, strength: int, name: str, place: Place | None) -> Tag:
        """Return the tag for values that `name` makes at `place`."""
        source = self._left_place if strength == NUMPY and self._left_tick == self._tick() else None
        key = strength, name, place, source
        tag = self._tags.get(key)
        if tag is None:
            tag = self._tags[key] = Tag(*key)
        tag.tick = self._tick()
        return tag

    def install(self, patches: Patches) -> None:
        """Note what ``torch.from_numpy`` makes, unseen by modes, until the patches are undone."""
        if not self.enabled:
            return
        real = torch.from_numpy

        @wraps(real)
        def from_numpy(array: Any) -> Tensor:
            out = real(array)
            self.note_made(out, array, "torch.from_numpy")
            return out

        patches.set(torch, "from_numpy", from_numpy)

    def forget_sites(self) -> None:
        """Forget what is known of sites, which are numbered anew."""
        self._tallies.clear()
        self.named.clear()

    def note_host_operator(self, plan: Any, values: Sequence[Any], out: Any) -> None:
        """Give the results of an operator on the CPU the strongest origin of its arguments, `values` without
        lists; what a factory makes from none is made here."""
        if plan.views and not plan.written:
            return
        overwrites = bool(plan.written) and plan.name in _OVERWRITING
        sources = values[1:] if overwrites else values
        best: Tag | None = None
        for value in sources:
            if isinstance(value, Tensor):
                try:  # `tag_of`, without two calls for each argument of each operator
                    tag: Tag | None = value.untyped_storage().__dict__.get(ORIGIN)
                except NO_STORAGE:
                    continue
                if tag is not None and (best is None or tag.strength > best.strength):
                    best = tag
        if best is None and plan.makes:
            best = self._tag(MADE, _call_name(plan.name), users_place())
        elif best is None and not plan.written:
            return
        elif len(values) > 1 and (best is None or best.strength != BATCH):
            best = self._of_several(best, values)
        for result in (out,) if type(out) is Tensor else trees.tensors(out):
            attributes = attributes_of(result)
            if attributes is not None:
                if plan.written:
                    attributes[WRITES] = attributes.get(WRITES, 0) + 1
                before = _origin_left(attributes, result, overwrites) if plan.written else None
                if best is None or before is None or best.strength > before.strength:
                    attributes[ORIGIN] = best or before

    def _of_several(self, best: Tag | None, values: Sequence[Any]) -> Tag | None:
        """Return the origin of what is made of several tensors, `best` being the strongest of theirs.

        What was made on the CPU and then met another tensor there cannot be made on the GPU alone.
        """
        if best is not None and best.strength == COPIED_BACK:
            return self._without_data(best, values)
        tags = {tag_of(value) for value in values if isinstance(value, Tensor) and value.numel() > 1}
        if len(tags) > 1:
            for tag in tags:
                if tag is not None:
                    tag.meets = True
            return None
        return best

    def _without_data(self, best: Tag, values: Sequence[Any]) -> Tag | None:
        """Return `best`, or the origin of the first of `values` that holds data from elsewhere: only if there
        is none a result could be on the device without a copy."""
        for tensor in values:
            if not isinstance(tensor, Tensor) or tensor.numel() <= 1:
                continue
            tag = tag_of(tensor)
            strength, tick = (tag.strength, tag.tick) if tag is not None else (MADE, -1)
            is_data = strength == BATCH or (strength < BATCH and tick < self._tick() - 1)
            if is_data:
                return tag
        return best

    def note_copy(self, source: Tensor, target: Tensor, to_device: bool, call: str) -> None:
        """Note that `target` received values from another device: those on the CPU come from this line."""
        if not to_device and self._is_recording():
            attributes = attributes_of(target)
            if attributes is not None:
                attributes[ORIGIN] = self._tag(COPIED_BACK, call or "Tensor.to", users_place())

    def note_batch(self, batch: Any) -> None:
        """Note that a DataLoader yielded `batch` at the running line."""
        if not self.enabled:
            return
        tag = self._tag(BATCH, "DataLoader", users_place())
        for tensor in trees.tensors(batch):
            attributes = attributes_of(tensor)
            before = attributes.get(ORIGIN) if attributes is not None else None
            if attributes is not None and (before is None or before.strength <= BATCH):
                attributes[ORIGIN] = tag

    def note_made(self, out: Tensor, data: Any, name: str) -> None:
        """Note that `name` made `out` on the CPU from `data`: an array, a list or a number."""
        attributes = attributes_of(out) if self._is_recording() and not isinstance(data, Tensor) else None
        if attributes is None:
            return
        is_array = type(data).__module__ == "numpy"
        if is_array and name != "torch.tensor":
            attributes[SHARED] = True
        has_left = self._left_for_list and self._left_tick == self._tick()
        strength = NUMPY if is_array or (has_left and isinstance(data, (list, tuple))) else MADE
        attributes[ORIGIN] = _tag_behind(data) or self._tag(strength, name, users_place())

    def note_leaves(self, tensor: Tensor, on_device: bool, for_list: bool = False) -> None:
        """Note that the values of `tensor` leave torch, as an array or `for_list`."""
        if not self._is_recording():
            return
        attributes = attributes_of(tensor)
        if attributes is None:
            return
        place = users_place() if on_device else None
        if not on_device:
            attributes[SHARED] = True
            tag = attributes.get(ORIGIN)
            place = tag.place if tag is not None and tag.strength == COPIED_BACK else None
        if place is not None:
            self._left_place, self._left_tick, self._left_for_list = place, self._tick(), for_list

    @contextlib.contextmanager
    def indexing(self, table: Tensor) -> Iterator[None]:
        """Note in the block that `table`, on the CPU, is indexed by a tensor on the device."""
        before, self.table = self.table, table
        try:
            yield
        finally:
            self.table = before

    def note_iteration(self, tensor: Tensor) -> None:
        """Note that a tensor on the device is iterated over."""
        if self._is_recording():
            self._has_walks = True
            element_loops.note_iteration(tensor)

    def _is_recording(self) -> bool:
        return self.enabled and not local.quiet

    # -- waits -------------------------------------------------------------------------------------

    def note_names(self, site: int) -> None:
        """Note where the tensors are that the user's line can name, at the first wait of a site."""
        if site not in self.named:
            self.named[site] = tensors_by_name(self._state_of)

    def note_wait(self, site: int, mechanism: Mechanism, detail: str, about: Sequence[Any]) -> None:
        """Add a wait at a site, and the tensors that it is `about`, to what is known of the site."""
        if not self.enabled:
            return
        tick = self._tick()
        tally = self._tallies.get(site)
        if tally is None:
            tally = self._tallies[site] = SiteTally(tick)
        if mechanism == "h2d":
            if not tally.passes_over(tick):
                self._note_sent(tally, tick, detail, about)
        elif mechanism in ("read", "d2h"):
            self._note_read(tally, tick, about)

    def _note_sent(self, tally: SiteTally, tick: int, detail: str, about: Sequence[Any]) -> None:
        """Tally a copy to the device."""
        best: Tag | None = None
        parts: list[Sent | None] = []
        compares = tally.compares
        for tensor in trees.tensors(about):
            if self._state_of(tensor) >= 0 or (detail == "index" and tensor.is_floating_point()):
                continue
            attributes = attributes_of(tensor)
            if attributes is None:
                continue
            tag = attributes.get(ORIGIN)
            if tag is not None and (best is None or tag.strength > best.strength):
                best = tag
            if compares:
                parts.append(compare_with_last(tensor, attributes, tick, self._has_values(tensor)))
        tally.add_sent(tick, best, parts)

    def _note_read(self, tally: SiteTally, tick: int, about: Sequence[Any]) -> None:
        """Tally a read of a tensor on the device."""
        if self.table is not None:
            tally.add_table(tick, tag_of(self.table))
            return
        if not self._has_walks:
            tally.add_read(tick, None)
            return
        source = next((tensor for tensor in trees.tensors(about) if self._state_of(tensor) >= 0), None)
        attributes = attributes_of(source) if source is not None else None
        if source is None or attributes is None:
            tally.add_read(tick, None)
            return
        tally.add_read(tick, element_loops.walking_loop(source, attributes))

    def add_causes(self, sites: Sequence[Site]) -> list[Site]:
        """Return `sites`, in the order of their numbers, each with where its values come from, if known."""
        return [
            msgspec.structs.replace(site, cause=self._tallies[number].decide())
            if number in self._tallies
            else site
            for number, site in enumerate(sites)
        ]


_OVERWRITING = frozenset(f"aten::{name}_" for name in ("copy", "fill", "zero", "normal", "uniform", "random"))
"""Operators that replace all of their first argument."""


def _origin_left(attributes: dict[str, Any], result: Tensor, overwrites: bool) -> Tag | None:
    """Return the origin that written memory keeps.

    It has none left if an operator that `overwrites` replaced all of it, or if it met another tensor.
    """
    tag: Tag | None = attributes.get(ORIGIN)
    if overwrites and result.numel() * result.element_size() >= result.untyped_storage().nbytes():
        return None
    return None if tag is not None and tag.meets else tag


@cache
def _call_name(operator: str) -> str:
    """Return ``torch.ones`` for ``aten::ones``."""
    return f"torch.{operator.removeprefix('aten::')}"


def _tag_behind(array: Any) -> Tag | None:
    """Return the tag of the tensor whose memory a NumPy array shows."""
    while array is not None and not isinstance(array, Tensor):
        array = getattr(array, "base", None)
    return tag_of(array) if array is not None else None
