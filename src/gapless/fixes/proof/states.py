"""Record parameters, buffers and optimizer states after each optimizer step, without the device's notice."""

from __future__ import annotations

import gc
import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_uint8
from typing import Any

import msgspec
import numpy as np
import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from gapless import trees
from gapless.fixes.proof.run_record import StepRecord, TensorRecord
from gapless.torch_internals import DisableTorchDispatch, DisableTorchFunction

_MAX_SAMPLE = 4096
"""Elements of one tensor that are stored per step, to name the first that differs; small models fit whole."""
_MAX_VALUE_BYTES = 512 << 20
"""All stored elements of a run: later steps have digests only."""
_MAX_RESULTS = 2000
"""Outputs of models that are recorded where nothing is trained."""


@contextmanager
def without_emulation() -> Iterator[None]:
    """Keep what is done in this block from the emulated device: it is no part of the script."""
    with DisableTorchDispatch(), DisableTorchFunction(), torch.no_grad():
        yield


def raw_bytes(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a copy of the bytes of `tensor`, whatever device it is said to be on; none if it has none."""
    with without_emulation():
        local = getattr(tensor, "to_local", None)
        dense = (local() if local is not None else tensor).detach()
        if dense.is_quantized:
            dense = dense.int_repr()
        dense = (dense if dense.layout is torch.strided else dense.to_dense()).contiguous()
        size = dense.numel() * dense.element_size()
        address = dense.data_ptr()
        if not size or not address:
            return np.empty(0, np.uint8)
        buffer: Any = (c_uint8 * size).from_address(address)
        data: np.ndarray[Any, Any] = np.frombuffer(buffer, np.uint8).copy()
        return data


class ValueStore:
    """Digests tensors, and stores samples of their elements in a file, if any, as long as there is room."""

    def __init__(self, path: str | None) -> None:
        self._file = open(path, "wb") if path else None  # noqa: SIM115 - open until the process ends
        self._size = 0

    def record(self, name: str, tensor: torch.Tensor) -> TensorRecord:
        """Return the record of `tensor` as it is now."""
        data = raw_bytes(tensor)
        kind = str(tensor.dtype).removeprefix("torch.")
        digest = hashlib.blake2b(data.tobytes(), digest_size=12).digest()
        elements = data.reshape(-1, tensor.dtype.itemsize) if len(data) else data.reshape(0, 1)
        stride = max(1, -(-len(elements) // _MAX_SAMPLE))
        sample = elements[::stride]
        if self._file is None or not len(sample) or self._size + sample.nbytes > _MAX_VALUE_BYTES:
            return TensorRecord(name, kind, tuple(tensor.shape), digest)
        offset = self._size
        self._file.write(sample.tobytes())
        self._file.flush()
        self._size += sample.nbytes
        return TensorRecord(name, kind, tuple(tensor.shape), digest, offset, len(sample), stride)


class StateRecorder:
    """Records each optimizer step, and the outputs of models as long as nothing is trained."""

    def __init__(self, store: ValueStore, printed: Any) -> None:
        self._store = store
        self._printed = printed
        self._roots: list[tuple[str, torch.nn.Module]] = []
        self._names: dict[int, str] = {}
        self._sizes: dict[int, int] = {}
        self._depth = 0
        self.steps: list[StepRecord] = []
        self.results: list[TensorRecord] = []
        self.saved: list[TensorRecord] = []
        self.optimizers: list[Any] = []

    def install(self) -> None:
        """Record from now on; call it before the emulated device starts, whose hooks may stop the script."""
        register_optimizer_step_post_hook(self._after_step)
        register_module_forward_pre_hook(self._enter)
        register_module_forward_hook(self._leave, always_call=True)

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        self._depth += 1

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        self._depth = max(self._depth - 1, 0)
        if self._depth or self.optimizers or len(self.results) >= _MAX_RESULTS:
            return
        for number, tensor in enumerate(trees.tensors(output)):
            call = len(self.results)
            name = f"call {call + 1} of {type(module).__name__}, output {number}"
            self.results.append(self._store.record(name, tensor))

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not any(optimizer is other for other in self.optimizers):
            self.optimizers.append(optimizer)
            self.results.clear()
        tensors = []
        rates = []
        for name, tensor, rate in self._states(optimizer):
            tensors.append(self._store.record(name, tensor))
            if rate is not None:
                rates.append((name, rate))
        number = len(self.steps) + 1
        idle = tuple(self._idle_states()) if number & (number - 1) == 0 else ()  # at 1, 2, 4, 8, ...
        kind = type(optimizer).__name__
        self.steps.append(StepRecord(kind, tuple(tensors), tuple(rates), self._printed(), idle))

    def _states(self, optimizer: Any) -> Iterator[tuple[str, torch.Tensor, float | None]]:
        """Yield each parameter of `optimizer` with its name and learning rate, then the modules' buffers."""
        parameters = [(parameter, group) for group in optimizer.param_groups for parameter in group["params"]]
        own = {id(parameter) for parameter, _ in parameters}
        if self._sizes.get(id(optimizer)) != len(own):
            self._sizes[id(optimizer)] = len(own)
            self._name([parameter for parameter, _ in parameters])
        for number, (parameter, group) in enumerate(parameters):
            name = self._names.setdefault(id(parameter), f"{type(optimizer).__name__} parameter {number}")
            yield name, parameter, _to_float(group.get("lr"))
        for label, root in self._roots:
            if any(id(parameter) in own for parameter in root.parameters()):
                for name, buffer in root.named_buffers():
                    yield f"{label}.{name}", buffer, None

    def _idle_states(self) -> Iterator[TensorRecord]:
        """Yield the states of modules that no optimizer trains; those of a class sorted by bits."""
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        trained = {id(parameter) for group in groups for parameter in group["params"]}
        records: dict[str, list[list[TensorRecord]]] = {}
        for module in outermost_modules():
            states = dict(module.named_parameters()), dict(module.named_buffers())
            if trained.isdisjoint(id(parameter) for parameter in states[0].values()):
                own = [self._store.record(*item) for state in states for item in state.items()]
                records.setdefault(type(module).__name__, []).append(own)
        for kind, modules in sorted(records.items()):
            modules.sort(key=lambda own: [record.digest for record in own])
            for number, own in enumerate(modules, 1):
                label = f"untrained {kind}#{number}" if len(modules) > 1 else f"untrained {kind}"
                yield from (msgspec.structs.replace(record, name=f"{label}.{record.name}") for record in own)

    def record_checkpoint(self, file: str, value: object) -> None:
        """Record the tensors and numbers that are saved as `file`, without those that a clock decides."""
        from gapless.fixes.proof.printed_text import mask
        from gapless.prove.tree import leaves

        for path, leaf in leaves(value, file):
            if isinstance(leaf, torch.nn.Module):
                for name, state in leaf.state_dict().items():
                    if isinstance(state, torch.Tensor):
                        self.saved.append(self._store.record(f"{path}.{name}", state))
            elif isinstance(leaf, torch.Tensor):
                self.saved.append(self._store.record(path, leaf))
            elif isinstance(leaf, int | float):
                text = f"{path.rpartition('[')[2]} 1.5".replace("]", "")
                if mask(text) == text:  # no time
                    self.saved.append(self._record_number(path, leaf))

    def _record_number(self, path: str, number: float) -> TensorRecord:
        kind = torch.int64 if isinstance(number, int) and abs(number) < 1 << 63 else torch.float64
        with without_emulation():
            record = self._store.record(path, torch.tensor(number, dtype=kind))
        return msgspec.structs.replace(record, dtype=f"{record.dtype} number")

    def _name(self, parameters: list[torch.Tensor]) -> None:
        """Name `parameters` by the outermost modules that hold them; those of one class are numbered."""
        labels = {id(root): label for label, root in self._roots}
        position = {id(parameter): number for number, parameter in enumerate(parameters)}
        held = [
            (min(numbers), -len(numbers), type(root).__name__, root)
            for root in outermost_modules()
            if (numbers := [position[id(p)] for p in root.parameters() if id(p) in position])
        ]
        for *_, root in sorted(held, key=lambda item: item[:3]):
            kind = type(root).__name__
            same = sum(label.partition("#")[0] == kind for label in labels.values())
            if id(root) not in labels:
                labels[id(root)] = f"{kind}#{same + 1}" if same else kind
                self._roots.append((labels[id(root)], root))
            for name, parameter in root.named_parameters():
                self._names.setdefault(id(parameter), f"{labels[id(root)]}.{name}")

    def final_states(self) -> tuple[TensorRecord, ...]:
        """Return the trained modules' states, and those that the optimizers keep for them, at the end."""
        records = [
            self._store.record(f"{label}.{name}", state)
            for label, root in self._roots
            for states in (root.named_parameters(), root.named_buffers())
            for name, state in states
        ]
        for optimizer in self.optimizers:
            for parameter, state in optimizer.state.items():
                name = self._names.get(id(parameter)) if isinstance(parameter, torch.Tensor) else None
                if name is None or not isinstance(state, dict):
                    continue
                records += [
                    self._store.record(f"{key} of {name}", value)
                    for key, value in state.items()
                    if isinstance(value, torch.Tensor) and value.dim()
                ]
        return tuple(records)


def outermost_modules() -> list[torch.nn.Module]:
    """Return the modules that no other module holds."""
    modules = [item for item in gc.get_objects() if issubclass(type(item), torch.nn.Module)]
    modules = [module for module in modules if "_parameters" in vars(module)]  # not one in the making
    inner = {id(child) for module in modules for child in vars(module)["_modules"].values()}
    return [module for module in modules if id(module) not in inner]


def _to_float(rate: Any) -> float | None:
    if isinstance(rate, torch.Tensor):
        data = raw_bytes(rate)
        kind = {torch.float32: np.float32, torch.float64: np.float64}.get(rate.dtype)
        return float(data.view(kind)[0]) if kind is not None and len(data) else None
    return float(rate) if isinstance(rate, int | float) else None


def random_states() -> dict[str, bytes]:
    """Return digests of the states of Python's, NumPy's and torch's generators; the device is still on."""
    states: dict[str, bytes] = {
        "Python's random": repr(random.getstate()).encode(),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }
    if "numpy" in sys.modules:
        states["NumPy's random"] = repr(np.random.get_state()).encode()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for number, state in enumerate(torch.cuda.get_rng_state_all()):
            states[f"torch on cuda:{number}"] = state.numpy().tobytes()
    return {name: hashlib.blake2b(state, digest_size=12).digest() for name, state in states.items()}


def seed_everything(seed: int) -> None:
    """Seed the generators that a script may draw from without seeding them."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
