"""`BucketBatchSampler`: batches of items of similar length, equally many for each rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy
import torch
from torch.utils.data import Sampler

from gapless.errors import UsageError
from gapless.loading.ranks import current_rank

IndexBatches = list[list[int]]


class BucketBatchSampler(Sampler[list[int]]):
    """Batches of indices of items of similar length, for ``DataLoader(batch_sampler=...)``.

    Items are shuffled, divided into pools of `pool` batches per rank, sorted by length within a pool and cut
    into batches; in one step the ranks get batches of neighbouring lengths, and the steps are shuffled. All
    of it follows from `seed` and the epoch (`set_epoch`), equally on every rank. With ``pool=None`` there is
    one pool: the least padding, and nearly the same batches in each epoch.

    Give `batch_size`, `max_tokens` (the most values of a batch with padding: its items times its longest
    length, rounded up to a multiple of `pad_to`), or both. Every rank gets the same number of batches. If
    they do not divide, `even` says how: ``"split"`` halves the largest batches until they do, so that every
    item comes exactly once; ``"repeat"`` repeats some batches; ``"drop"`` leaves some out.

    `largest_first` starts with the largest batch, so that its memory is allocated first and reused.
    `drop_last` leaves out batches with fewer than `batch_size` items. `shuffle=False` keeps the order of
    lengths and ignores the epoch. With `max_tokens` the number of batches can differ between epochs.

    Raises:
        UsageError: no bound or a wrong one, or an item longer than `max_tokens`.
    """

    def __init__(
        self,
        lengths: Sequence[int] | torch.Tensor | numpy.ndarray[Any, Any],
        batch_size: int | None = None,
        *,
        max_tokens: int | None = None,
        pad_to: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        pool: int | None = 100,
        even: Literal["split", "repeat", "drop"] = "split",
        drop_last: bool = False,
        largest_first: bool = False,
        rank: int | None = None,
        ranks: int | None = None,
    ) -> None:
        self.lengths = numpy.asarray(lengths, dtype=numpy.int64).reshape(-1)
        _check(batch_size, max_tokens, pad_to, pool, even, drop_last)
        self.rank, self.ranks = current_rank(rank, ranks)
        self.batch_size, self.max_tokens, self.pad_to = batch_size, max_tokens, pad_to
        self.shuffle, self.seed, self.pool, self.even = shuffle, seed, pool, even
        self.drop_last, self.largest_first = drop_last, largest_first
        self.epoch = 0
        self._yielded = 0
        self._resume = 0
        self._plan: tuple[int, list[IndexBatches]] | None = None
        padded = self._padded_lengths(self.lengths)
        if max_tokens is not None and len(padded) and padded.max() > max_tokens:
            at = int(padded.argmax())
            raise UsageError(
                f"item {at} takes {int(padded[at])} tokens with padding, but max_tokens={max_tokens}; "
                "raise max_tokens, or remove or truncate longer items"
            )

    def set_epoch(self, epoch: int) -> None:
        """Shuffle for `epoch` from the next pass on; a position loaded for another epoch is dropped."""
        if epoch != self.epoch:
            self._resume = 0
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._steps())

    def __iter__(self) -> Iterator[list[int]]:
        begin, self._resume = self._resume, 0
        self._yielded = begin
        for step in self._steps()[begin:]:
            self._yielded += 1
            yield list(step[self.rank])
        self._yielded = 0  # the state after the end is that before the next pass

    def tokens(self, batch: Sequence[int]) -> int:
        """Return the values of a batch of these items, with padding."""
        return len(batch) * int(self._padded_lengths(self.lengths[list(batch)]).max()) if len(batch) else 0

    def state_dict(self) -> dict[str, int]:
        """Return the epoch and the number of batches yielded. Workers of a DataLoader make it run ahead of
        the loop: use `state_after` there.
        """
        return self.state_after(self._resume or self._yielded)

    def state_after(self, batches: int) -> dict[str, int]:
        """Return the state after the loop has got `batches` batches of this epoch."""
        return {"epoch": self.epoch, "batches": batches, "seed": self.seed, "ranks": self.ranks}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue from `state` in the next pass; later passes begin at the start.

        Raises:
            UsageError: the state has another seed or number of ranks, and so other batches.
        """
        for name, mine in (("seed", self.seed), ("ranks", self.ranks)):
            if state[name] != mine:
                raise UsageError(f"the state was saved with {name}={state[name]}, but here {name}={mine}")
        self.epoch, self._resume = state["epoch"], state["batches"]

    def _padded_lengths(self, lengths: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
        return -(-lengths // self.pad_to) * self.pad_to

    def _steps(self) -> list[IndexBatches]:
        """Return the batches of all ranks, step by step, of this epoch."""
        key = self.epoch if self.shuffle else 0
        if self._plan is None or self._plan[0] != key:
            self._plan = (key, self._plan_steps(numpy.random.default_rng([self.seed % 2**63, key])))
        return self._plan[1]

    def _plan_steps(self, random: numpy.random.Generator) -> list[IndexBatches]:
        count = len(self.lengths)
        order = random.permutation(count) if self.shuffle else numpy.arange(count)
        batches: IndexBatches = []
        size = self._pool_size()
        for start in range(0, count, size):
            part = order[start : start + size]
            part = part[numpy.argsort(self.lengths[part], kind="stable")]
            batches += self._cut(part.tolist())
        if self.drop_last:
            batches = [batch for batch in batches if len(batch) == self.batch_size]
        batches = self._divide_among_ranks(batches)
        steps = [batches[at : at + self.ranks] for at in range(0, len(batches), self.ranks)]
        if self.shuffle:
            steps = [steps[at] for at in random.permutation(len(steps))]
        if self.largest_first and steps:
            largest = max(range(len(steps)), key=lambda at: max(map(self.tokens, steps[at])))
            steps.insert(0, steps.pop(largest))
        return steps

    def _pool_size(self) -> int:
        """Return the items of a pool: whole batches if their size is fixed."""
        if self.pool is None or not self.shuffle:
            return max(1, len(self.lengths))
        if self.batch_size is not None:
            return self.pool * self.batch_size * self.ranks
        mean = float(self._padded_lengths(self.lengths).mean()) if len(self.lengths) else 1.0
        return max(1, int(self.pool * self.ranks * (self.max_tokens or 1) / max(mean, 1.0)))

    def _cut(self, items: list[int]) -> IndexBatches:
        """Cut `items`, sorted by length, into batches within the bounds."""
        batches: IndexBatches = []
        current: list[int] = []
        sizes = self._padded_lengths(self.lengths[items]).tolist()
        for item, size in zip(items, sizes, strict=True):
            full = self.batch_size is not None and len(current) == self.batch_size
            over = self.max_tokens is not None and size * (len(current) + 1) > self.max_tokens
            if current and (full or over):
                batches.append(current)
                current = []
            current.append(item)
        return [*batches, current] if current else batches

    def _divide_among_ranks(self, batches: IndexBatches) -> IndexBatches:
        """Return `batches` with a number that divides among the ranks."""
        missing = -len(batches) % self.ranks
        if not missing or not batches:
            return batches
        if self.even == "drop":
            return batches[: len(batches) - len(batches) % self.ranks]
        while self.even == "split" and missing:
            at = max(range(len(batches)), key=lambda i: len(batches[i]))
            whole = batches[at]
            if len(whole) < 2:
                break
            batches[at : at + 1] = [whole[: len(whole) // 2], whole[len(whole) // 2 :]]
            missing -= 1
        return batches + [batches[at % len(batches)] for at in range(missing)]


def _check(
    batch_size: int | None, max_tokens: int | None, pad_to: int, pool: int | None, even: str, drop_last: bool
) -> None:
    if batch_size is None and max_tokens is None:
        raise UsageError("BucketBatchSampler needs batch_size=, max_tokens= or both")
    for name, bound in (
        ("batch_size", batch_size), ("max_tokens", max_tokens), ("pad_to", pad_to), ("pool", pool)
    ):  # fmt: skip
        if bound is not None and bound < 1:
            raise UsageError(f"{name}={bound} is not positive")
    if even not in ("split", "repeat", "drop"):
        raise UsageError(f"even={even!r} must be 'split', 'repeat' or 'drop'")
    if drop_last and (batch_size is None or max_tokens is not None):
        raise UsageError("drop_last=True needs batches of equal size: batch_size= without max_tokens=")
