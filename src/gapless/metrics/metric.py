"""The base of every metric: what TorchMetrics' users call, over statistics that never make the host wait."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from gapless.metrics import declared, distributed, exposed, wrapping
from gapless.metrics.batch import device_of, has_graph, moved
from gapless.metrics.checks import user_error
from gapless.metrics.core import Core
from gapless.metrics.describing import describe
from gapless.metrics.faults import check_after, deliver_elsewhere
from gapless.metrics.global_states import GlobalStates, Held
from gapless.metrics.incoming import from_dict, incoming, load_or_explain, others_states
from gapless.metrics.operators import Operators
from gapless.metrics.reading import CheckedReading, PendingReading
from gapless.metrics.wrapping import squeezed
from gapless.transfer import Reading
from gapless.trees import mapped

Self_ = TypeVar("Self_", bound="Metric")
FIXED = (
    "higher_is_better",
    "is_differentiable",
    "full_state_update",
    "plot_lower_bound",
    "plot_upper_bound",
    "plot_legend_name",
)


class Metric(Operators, Core, nn.Module):
    """A number (or several) over a stream of batches, with all that TorchMetrics' users call.

    A subclass declares its statistics with :meth:`use`, passes what its ``update`` is given to
    :meth:`observe`, and says in :meth:`value` how the result follows from the statistics' states. One that is
    written for TorchMetrics (``add_state``, ``update``, ``compute``) works as it does there.

    Args:
        compute_on_cpu: whether states that are lists move to the CPU after each update; all others stay where
            the inputs are.
        dist_sync_on_step: whether the batch value of ``forward`` is taken over all processes.
        process_group: the processes to reduce over, as a group or a one-dimensional ``DeviceMesh``; None for
            all.
        dist_sync_fn: gathers a tensor from all processes, called as ``dist_sync_fn(tensor, group=…)``; None
            to reduce all states together.
        distributed_available_fn: says whether there are other processes; None to ask ``torch.distributed``.
        sync_on_compute: whether ``compute`` reduces over all processes.
        compute_with_cache: whether ``compute`` may return the last value reduced over processes again, so
            that it is no collective where nothing was updated.
    """

    higher_is_better: bool | None = None
    is_differentiable: bool | None = None
    full_state_update: bool | None = None
    plot_lower_bound: float | None = None
    plot_upper_bound: float | None = None
    plot_legend_name: str | None = None
    drawn_as = "values"
    """How `plot` draws a result: ``"values"``, ``"matrix"``, or ``"curve"``."""
    direct = False
    """Whether a collection must call ``update``, because statistics alone do not make the metric."""
    abstract: ClassVar[bool]
    beyond: ClassVar[str] = ""
    """Arguments that the constructor takes without naming them."""
    torchmetrics_file: ClassVar[str | None] = ""
    """TorchMetrics' module of the metric, where it is not named as ours; None where TorchMetrics lacks it."""
    torchmetrics_slots: ClassVar[str | None] = None
    """TorchMetrics' states that are slots of the one statistic, as ``"total:i=seen"``: `f` a float, `i` an
    integer, with `1` of one row at least, with `-` of the other sign.
    """
    __jit_unused_properties__: ClassVar[list[str]] = []
    __jit_ignored_attributes__ = wrapping.OwnAttributes()

    compute_on_cpu: bool
    dist_sync_on_step: bool
    sync_on_compute: bool
    compute_with_cache: bool
    distributed_available_fn: Callable[[], bool]
    _own_defaults: dict[str, Any]
    _own_reductions: dict[str, Any]
    _own_persistent: dict[str, bool]
    _cache: Held | None
    _is_synced: bool
    _bare: bool
    _keeps: bool
    _forward_cache: Any
    _computes_itself: ClassVar[bool] = False
    """Whether a subclass has a ``compute`` of its own."""

    def __init_subclass__(cls, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if abstract:  # no metric itself, but what several have in common: `gapless.metrics.rooms`
            cls.abstract = True
        wrapping.adapt(cls, Metric)
        describe(cls, Metric)

    def __init__(self, **options: Any) -> None:
        nn.Module.__init__(self)
        Core.__init__(self, options.pop("process_group", None))
        self._set_options(options)
        self.__dict__.update(_own_defaults={}, _own_reductions={}, _own_persistent={})
        self.__dict__.update(_bare=False, _updating=False, _enable_grad=False, _keeps=False)
        self.__dict__.update(_is_synced=False, _cache=None, _forward_cache=None)

    def _set_options(self, options: dict[str, Any]) -> None:
        flags = {"compute_on_cpu": False, "dist_sync_on_step": False, "sync_on_compute": True}
        for name, default in {**flags, "compute_with_cache": True}.items():
            value = options.pop(name, default)
            if not isinstance(value, bool):
                article = "an" if name in ("compute_on_cpu", "dist_sync_on_step") else "a"
                raise ValueError(f"Expected keyword argument `{name}` to be {article} `bool` but got {value}")
            setattr(self, name, value)
        self.dist_sync_fn = gather = options.pop("dist_sync_fn", None)
        if gather is not None and not callable(gather):
            words = "Expected keyword argument `dist_sync_fn` to be an callable function"
            raise ValueError(f"{words} but got {gather}")
        available: Callable[[], bool] | None = options.pop("distributed_available_fn", None)
        self.distributed_available_fn = available or distributed.available
        if options:
            raise ValueError(
                f"Unexpected keyword arguments: {', '.join(f'`{name}`' for name in sorted(options))}"
            )

    # States that a subclass declares.

    def add_state(
        self,
        name: str,
        default: list[Any] | Tensor,
        dist_reduce_fx: str | Callable[[Any], Any] | None = None,
        persistent: bool = False,
    ) -> None:
        """Declare the attribute `name`, which ``reset`` gives its `default` again.

        Args:
            name: the attribute.
            default: a tensor, or an empty list to which updates append tensors.
            dist_reduce_fx: how the states of several processes, or of a batch and those before, become one:
                ``"sum"``, ``"mean"``, ``"max"``, ``"min"``, ``"cat"``, a function of the stacked tensors (of
                the list, for lists), or None to leave them stacked.
            persistent: whether it is part of the ``state_dict``.

        Raises:
            ValueError: the default or the reduction is none of these.
        """
        declared.check_default(default)
        reduction = declared.reduction_of(dist_reduce_fx)
        if isinstance(default, Tensor):
            default = default.contiguous()
        setattr(self, name, default)
        self._own_defaults[name] = copy.deepcopy(default)
        self._own_persistent[name] = persistent
        self._own_reductions[name] = reduction

    @property
    def _defaults(self) -> dict[str, Any]:
        own = self._own_defaults
        return {**own, **exposed.defaults(self)} if self._parts else own

    @property
    def _reductions(self) -> dict[str, Any]:
        own = self._own_reductions
        return {**own, **exposed.reductions(self)} if self._parts else own

    @property
    def _persistent(self) -> dict[str, bool]:
        own = self._own_persistent
        return {**own, **dict.fromkeys(exposed.defaults(self), self._keeps)} if self._parts else own

    # What users call.

    def compute(self) -> Any:
        """The result over every batch since the last reset, on the device. The host does not wait.

        With several processes it is the result over all of them, and a collective operation.
        """
        if self._bare:
            return squeezed(self.value())
        wrapping.warn_of_no_data(self)
        self._watch.look(self._watched())
        if not (self.sync_on_compute and not self._is_synced and self._distributed()):
            return squeezed(self.value())
        known = self._ledger.computed
        if id(self) not in known or not self.compute_with_cache:
            with self.sync_context(distributed_available=lambda: True):
                known[id(self)] = squeezed(self.value())
            deliver_elsewhere(self._watched())
        return copy.copy(known[id(self)])

    @torch.jit.unused
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch and return the result over this batch alone, from the same pass over the data."""
        if self._is_synced:
            words = "The Metric shouldn't be synced when performing ``forward``: call ``unsync`` first"
            raise user_error(RuntimeError, words)
        if self._lender is not None:
            self._take_back()
        if self._holders():
            found = wrapping.forward_declared(self, args, kwargs)
        else:
            found = self._forward_counted(args, kwargs)
        # What is kept keeps no graph alive, and can be copied.
        self.__dict__["_forward_cache"] = mapped(found, Tensor.detach)
        return found

    def _forward_counted(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if device_of(args) is not None:
            self._follow(args, self.device)
        with self.batch_only(graph=self.keeps_graph((*args, *kwargs.values()))):
            self.update(*args, **kwargs)
            if self.dist_sync_on_step:
                with self.sync_context():
                    return self._squeezed_result()
            return self._squeezed_result()

    def _result(self) -> Any:
        """The result from the states as they are, by a subclass's own ``compute`` or by :meth:`value`."""
        if not self._computes_itself:
            return self.value()
        with wrapping.bare(self):
            return self.compute()

    def _squeezed_result(self) -> Any:
        return squeezed(self._result())

    def reset(self) -> None:
        """Back to no data, in the same storages."""
        if self._is_synced:
            self.unsync()
        try:
            super().empty()
        finally:
            for holder in self._holders():
                declared.cleared(holder)
            self.__dict__["_forward_cache"] = None

    def read(self, async_op: bool = False) -> Reading:
        """Start to bring the result to the host and return at once, with a :class:`~.reading.Reading`.

        Bad values that updates met come with it. With several processes and `async_op` nothing waits for the
        others either: the reduction is started, and the result follows from it once they have answered.
        """
        if async_op and self.sync_on_compute and not self._is_synced and self._distributed():
            whole = GlobalStates([self], async_op=True)
            return PendingReading(CheckedReading(None, self._watched()), whole, self._squeezed_result)
        return super().read()

    def clone(self) -> Metric:
        """A copy that shares nothing with this metric."""
        return copy.deepcopy(self)

    def plot(self, val: Any = None, ax: Any = None, **options: Any) -> Any:
        """Draw `val`, one or more results (None for that of ``compute``), with Matplotlib.

        Args:
            val: what to draw; a curve or a matrix is drawn as such, one of them.
            ax: what to draw in; None for a new figure.
            options: for curves `score`, a number for the legend or True for the area; for matrices
                `add_text`, `labels` and `cmap`.

        Returns:
            The figure and its axes; `ax` where it was given.
        """
        from gapless.metrics import plotting

        given = options.pop("curve", val)
        return plotting.DRAWN[self.drawn_as](self, self.compute() if given is None else given, ax, **options)

    @property
    def update_called(self) -> bool:
        """Whether there has been data since the last reset."""
        return self._ledger.updated

    @property
    def update_count(self) -> int:
        """Updates since the last reset that Python ran; those in a compiled function or a CUDA graph are not
        counted.
        """
        return self._ledger.count

    _update_called = update_called

    @property
    def _update_count(self) -> int:
        return self._ledger.count

    @_update_count.setter
    def _update_count(self, count: int) -> None:
        self._ledger.count = count
        self._ledger.updated = count > 0

    @property
    def _computed(self) -> Any:
        """The result that is known until the next update; None where there is none."""
        return self._ledger.computed.get(id(self))

    @_computed.setter
    def _computed(self, value: Any) -> None:
        if value is None:
            self._ledger.computed.pop(id(self), None)
        else:
            self._ledger.computed[id(self)] = value

    @property
    def metric_state(self) -> dict[str, Any]:
        """The states by name."""
        found = {name: getattr(self, name) for name in self._own_defaults}
        return {**found, **{n: v for n, v in self._counted_state().items() if not n.endswith(".clean")}}

    def _counted_state(self) -> dict[str, Tensor]:
        return {f"{n}.{slot}": value for n, part in self.statistics() for slot, value in part.saved().items()}

    def set_dtype(self, dst_type: torch.dtype | str) -> Metric:
        """Give results the floating-point type `dst_type`, and declared states too. Sums of statistics keep
        their own, wider type.
        """
        dtype = torch.empty(0).type(dst_type).dtype
        self.__dict__["_dtype"] = dtype
        declared.moved_to(self, lambda value: value.to(dtype) if value.is_floating_point() else value)
        for child in self.modules():
            if child is not self and isinstance(child, Metric):
                child.set_dtype(dtype)
        return self

    # Parts.

    def keeps_graph(self, args: Iterable[Any]) -> bool:
        """Whether gradients are to be taken of the result over a batch of `args`."""
        return bool(self.is_differentiable) and has_graph(args)

    @contextmanager
    def batch_only(self, graph: bool = False) -> Iterator[None]:
        """Updates and values inside the block are of one batch, which is added to the rest at its end.

        With `graph` gradients can be taken of values.
        """
        for part in self._parts:
            part.begin_batch(graph)
        try:
            yield
        finally:
            for part in self._parts:
                part.end_batch()
        if not torch.compiler.is_compiling():
            check_after(self._watched())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Metric:
        super()._apply(fn, recurse)
        there = fn(torch.empty(0, device=self.device)).device
        super().move(there)
        declared.moved_to(self, lambda value: moved(value, there))
        self.__dict__["_forward_cache"] = mapped(self._forward_cache, lambda value: value.to(there))
        return self

    # Other metrics, other processes.

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add what another metric of this class has seen, given as it is or as its ``metric_state``.

        Raises:
            ValueError: it is no state of such a metric.
            RuntimeError: states of this metric cannot be merged.
        """
        self._reduce_states(incoming(self, incoming_state))
        self._ledger.updated_once(compiling=True)

    def _reduce_states(self, given: Mapping[str, Any] | Metric) -> None:
        self._absorb(given.statistics() if isinstance(given, Metric) else from_dict(self, given))
        if self._own_defaults:
            states = given.metric_state if isinstance(given, Metric) else given
            declared.merge(self, states, self.update_count)

    def sync(
        self,
        dist_sync_fn: Any = None,
        process_group: Any = None,
        should_sync: bool = True,
        distributed_available: Callable[[], bool] | None = None,
    ) -> None:
        """Put the states reduced over all processes in place of the local ones, until :meth:`unsync`."""
        if self._is_synced and should_sync:
            raise user_error(RuntimeError, "The Metric has already been synced. Call ``unsync`` first")
        available = distributed_available or self.distributed_available_fn
        if not should_sync or not available():
            return
        held = GlobalStates([self], group=process_group, gather=dist_sync_fn).held()
        self.__dict__.update(_cache=held, _is_synced=True)

    def unsync(self, should_unsync: bool = True) -> None:
        """Put the local states back."""
        if not should_unsync:
            return
        if not self._is_synced:
            raise user_error(RuntimeError, "The Metric has already been un-synced.")
        if self._cache is None:
            raise RuntimeError("The internal cache should exist to unsync the Metric.")
        self._cache.release()
        self.__dict__.update(_cache=None, _is_synced=False)

    @contextmanager
    def sync_context(self, should_unsync: bool = True, **options: Any) -> Iterator[None]:
        """The states of all processes inside the block, the local ones after it (unless `should_unsync` is
        False); `options` as in :meth:`sync`.
        """
        before = self._is_synced
        self.sync(**options)
        try:
            yield
        finally:
            if should_unsync and self._is_synced and not before:
                self.unsync()

    def _sync_dist(self, dist_sync_fn: Any = None, process_group: Any = None) -> None:
        """Put the declared states over all processes in place of the local ones."""
        group = distributed.as_group(process_group or self.process_group)
        declared.put(self, declared.reduce(self, group, dist_sync_fn))

    def _distributed(self) -> bool:
        return bool(self.distributed_available_fn())

    def _holders(self) -> Sequence[Metric]:
        """The metrics whose declared states the result depends on."""
        return [self] if self._own_defaults else ()

    # Saving.

    def persistent(self, mode: bool = False) -> None:
        """Whether ``state_dict`` holds the states."""
        self.__dict__["_keeps"] = mode
        self._own_persistent.update(dict.fromkeys(self._own_persistent, mode))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        found: dict[str, Any] = {
            name: getattr(self, name) for name in self._own_defaults if self._own_persistent[name]
        }
        if self._keeps:
            found.update(self._counted_state())
        for name, value in found.items():
            destination[prefix + name] = value if keep_vars else declared.copied(value)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        missing = args[2]
        for name in self._own_defaults:
            if prefix + name in state_dict:
                setattr(self, name, state_dict.pop(prefix + name))
                self._ledger.updated_once(compiling=True)
        if any(read(self, state_dict, prefix, args[4]) for read in others_states):
            return
        for name, part in self.statistics():
            found = {slot: state_dict.pop(f"{prefix}{name}.{slot}", None) for slot in part.saved_names()}
            lost = [slot for slot in part.saved_slots if found[slot] is None]
            if not lost:
                load_or_explain(part, found, args[4], f"{prefix}{name}")
                self._ledger.updated_once(False)
            elif self._keeps:
                missing += [f"{prefix}{name}.{slot}" for slot in lost]
        super()._load_from_state_dict(state_dict, prefix, *args)

    def type(self: Self_, dst_type: Any) -> Self_:
        """The metric as it is; see :meth:`set_dtype`."""
        return self

    def float(self: Self_) -> Self_:
        """The metric as it is; see :meth:`set_dtype`."""
        return self

    double = half = float

    def _parameters_of_update(self) -> list[inspect.Parameter]:
        return list(inspect.signature(self.update).parameters.values())

    def _filter_kwargs(self, **kwargs: Any) -> dict[str, Any]:
        """Those of the keyword arguments that ``update`` takes."""
        return wrapping.known(self._parameters_of_update(), kwargs) if kwargs else kwargs

    # Attributes.

    def __getattr__(self, name: str) -> Any:
        if "." in name:
            return exposed.taken(self, name)
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in FIXED:
            raise RuntimeError(f"Can't change const `{name}`.")
        if "." in name and exposed.put(self, name, value):
            return
        super().__setattr__(name, value)


Metric.__jit_unused_properties__ = wrapping.properties_of(Metric)
