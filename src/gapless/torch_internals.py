"""The private names of torch that Gapless uses, and the versions that have them.

No other module uses private names. A name is looked up when first used. If this torch lacks it, it is None
if its version is known to lack it, else a one-line error. A torch that is too old is an error on import.

    >>> from gapless.torch_internals import DisableTorchFunction
"""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any, NamedTuple

import torch

from gapless.errors import UsageError

OLDEST, NEWEST = (2, 4), (2, 15)
"""The range of torch versions that Gapless is tested with (``make versions``)."""


class PrivateName(NamedTuple):
    """A private name of torch: its path, the versions that have it, and what does not work without it."""

    path: str
    since: tuple[int, int] = OLDEST
    until: tuple[int, int] = (99, 0)
    without: str = ""
    late: bool = False  # it changes while a process runs, so it is looked up each time
    built_with: str = ""  # what a torch may be built without: "distributed", "gloo", "cuda", "mkldnn"


_DISTRIBUTED = "distributed"
_C10D = "torch._C._distributed_c10d"
_C10D_PYTHON = "torch.distributed.distributed_c10d"
_LOADING = "torch.utils.data._utils"

NAMES: dict[str, PrivateName] = {
    # -- modes and dispatch
    "DisableTorchFunction": PrivateName("torch._C.DisableTorchFunction"),
    "DisableTorchDispatch": PrivateName("torch._C._DisableTorchDispatch"),
    "TorchDispatchMode": PrivateName("torch.utils._python_dispatch.TorchDispatchMode"),
    "DispatchKey": PrivateName("torch._C.DispatchKey"),
    "DispatchKeySet": PrivateName("torch._C.DispatchKeySet"),
    "ExcludedKeys": PrivateName("torch._C._ExcludeDispatchKeyGuard"),
    "SetExcludedKey": PrivateName("torch._C._SetExcludeDispatchKeyGuard"),
    "without_dispatch_modes": PrivateName("torch.utils._python_dispatch._disable_current_modes"),
    "OperatorNamespace": PrivateName("torch._ops._OpNamespace"),
    "dump_of_operator": PrivateName("torch._C._dispatch_dump"),
    "OperatorOverload": PrivateName("torch._ops.OpOverload"),
    "HigherOrderOperator": PrivateName("torch._ops.HigherOrderOperator"),
    "Operator": PrivateName("torch._ops.OpOverload"),
    "bf16_supported": PrivateName("torch.ops.mkldnn._is_mkldnn_bf16_supported", built_with="mkldnn"),
    "has_any_kernel": PrivateName("torch._C._dispatch_has_kernel"),
    "no_torch_function": PrivateName("torch._C._disabled_torch_function_impl"),
    "current_dispatch_mode": PrivateName("torch.utils._python_dispatch._get_current_dispatch_mode"),
    "pop_dispatch_mode": PrivateName("torch.utils._python_dispatch._pop_mode"),
    "current_function_mode": PrivateName("torch.overrides._get_current_function_mode"),
    "without_function_mode": PrivateName("torch.overrides._pop_mode_temporarily"),
    "pop_function_mode": PrivateName("torch._C._pop_torch_function_stack"),
    "asks_functions": PrivateName("torch._C._is_torch_function_mode_enabled"),
    "count_function_modes": PrivateName("torch._C._len_torch_function_stack"),
    "without_modes": PrivateName("torch.utils._python_dispatch._disable_current_modes"),
    "dispatch_mode_of": PrivateName("torch._C._get_dispatch_mode"),
    "DispatchModeKey": PrivateName("torch._C._TorchDispatchModeKey"),
    "no_torch_dispatch": PrivateName("torch._C._disabled_torch_dispatch_impl"),
    "has_kernel": PrivateName("torch._C._dispatch_has_kernel_for_dispatch_key"),
    "names_of_operators": PrivateName("torch._C._dispatch_get_all_op_names"),
    "schemas_of_operator": PrivateName("torch._C._jit_get_schemas_for_operator"),
    "key_is_excluded": PrivateName("torch._C._dispatch_tls_is_dispatch_key_excluded"),
    "exclude_key": PrivateName("torch._C._dispatch_tls_set_dispatch_key_excluded"),
    "key_is_included": PrivateName("torch._C._dispatch_tls_is_dispatch_key_included"),
    "include_key": PrivateName("torch._C._dispatch_tls_set_dispatch_key_included"),
    "registered_in_python": PrivateName("torch.library._impls"),
    "library_fallback": PrivateName(
        "torch.library.Library.fallback",
        since=(2, 5),
        without='torch.autocast("cpu") also casts tensors on the GPU',
    ),
    "lift_only_cpu_tensors": PrivateName("torch._C._set_only_lift_cpu_tensors"),
    # -- tensors and storages
    "TensorBase": PrivateName("torch._C.TensorBase"),
    "neg_view": PrivateName("torch._neg_view"),
    "conj_view": PrivateName("torch._conj"),
    "is_alias_of": PrivateName("torch._C._is_alias_of"),
    "has_storage": PrivateName("torch._C._has_storage"),
    "weak_ref_expired": PrivateName("torch.UntypedStorage._expired"),
    "storage_of_weak_ref": PrivateName("torch.UntypedStorage._new_with_weak_ptr"),
    "write_storage_to_file": PrivateName("torch.UntypedStorage._write_file"),
    "free_weak_ref": PrivateName("torch.UntypedStorage._free_weak_ref"),
    "functorch": PrivateName("torch._C._functorch"),
    "storage_use_count": PrivateName("torch._C._storage_Use_Count"),
    "default_device": PrivateName("torch._GLOBAL_DEVICE_CONTEXT"),
    "device_constructors": PrivateName("torch.utils._device._device_constructors"),
    "foreach_copy": PrivateName("torch._foreach_copy_"),
    "foreach_norm": PrivateName("torch._foreach_norm"),
    "foreach_zero": PrivateName("torch._foreach_zero_"),
    "group_tensors": PrivateName("torch.utils._foreach_utils._group_tensors_by_device_and_dtype", late=True),
    "fused_sdp_choice": PrivateName("torch._fused_sdp_choice"),
    "sdp_priority_order": PrivateName("torch._C._get_sdp_priority_order", since=(2, 6)),
    "semi_structured": PrivateName("torch.sparse._semi_structured_conversions"),
    "pad_packed_sequence": PrivateName("torch._pad_packed_sequence"),
    "parse_to": PrivateName("torch._C._nn._parse_to", late=True),
    "jit_enabled": PrivateName("torch.jit._state._enabled"),
    # -- autograd and modules
    "sequence_number": PrivateName("torch._C._autograd._get_sequence_nr"),
    "current_node": PrivateName("torch._C._current_autograd_node"),
    "override_stale_stream": PrivateName(
        "torch._C._override_stale_capture_stream",
        since=(2, 13),
        without="a backward pass that reaches back before a CUDA graph's capture fails with CUDA's error",
    ),
    "below_autograd": PrivateName("torch._C._AutoDispatchBelowAutograd"),
    "run_backward": PrivateName("torch.autograd.graph._engine_run_backward", late=True),
    "module_apply": PrivateName("torch.nn.Module._apply", late=True),
    "module_call": PrivateName("torch.nn.Module._wrapped_call_impl"),
    "module_save": PrivateName("torch.nn.Module._save_to_state_dict"),
    "module_load": PrivateName("torch.nn.Module._load_from_state_dict"),
    "cudnn_enabled": PrivateName("torch._C._get_cudnn_enabled"),
    # -- profilers
    "gather_traceback": PrivateName("torch._C._profiler.gather_traceback"),
    "symbolize_tracebacks": PrivateName("torch._C._profiler.symbolize_tracebacks"),
    "profiler_enabled": PrivateName("torch.autograd._profiler_enabled"),
    "profiler_somewhere": PrivateName("torch.autograd.profiler._is_profiler_enabled", late=True),
    "KinetoProfile": PrivateName("torch.profiler.profiler._KinetoProfile"),
    "ProfilerConfig": PrivateName("torch._C._profiler._ExperimentalConfig"),
    "disable_dynamo": PrivateName("torch._compile._disable_dynamo"),
    # -- loaders
    "LoaderIter": PrivateName("torch.utils.data.dataloader._BaseDataLoaderIter"),
    "MapFetcher": PrivateName(f"{_LOADING}.fetch._MapDatasetFetcher"),
    "IterableFetcher": PrivateName(f"{_LOADING}.fetch._IterableDatasetFetcher"),
    "worker_loop": PrivateName(f"{_LOADING}.worker._worker_loop", late=True),
    # -- torch.cuda
    "LazySeedTracker": PrivateName("torch._utils._LazySeedTracker"),
    "cuda_lazy_init": PrivateName("torch.cuda._lazy_init", late=True),
    "cuda_initialized": PrivateName("torch.cuda._initialized", late=True),
    "in_bad_fork": PrivateName("torch.cuda._is_in_bad_fork", late=True),
    "cuda_thread_state": PrivateName("torch.cuda._tls", late=True),
    "device_index": PrivateName("torch.cuda._utils._get_device_index"),
    "record_memory_history": PrivateName("torch.cuda.memory._record_memory_history", late=True),
    "memory_snapshot": PrivateName("torch.cuda.memory._snapshot", late=True),
    "get_memory_metadata": PrivateName("torch.cuda.memory._get_memory_metadata", since=(2, 10), late=True),
    "set_memory_metadata": PrivateName("torch.cuda.memory._set_memory_metadata", since=(2, 10), late=True),
    # A build with CUDA has these; under emulation they are answered, with many more (`emulation.cuda_api`).
    "watch_out_of_memory": PrivateName(
        "torch._C._cuda_attach_out_of_memory_observer", late=True, built_with="cuda"
    ),
    "memory_fraction": PrivateName("torch._C._cuda_getMemoryFraction", late=True, built_with="cuda"),
    "FileWriter": PrivateName("torch._C.PyTorchFileWriter", late=True),
    "C": PrivateName("torch._C"),
    # -- compilers, changed when a script imports them
    "dynamo": PrivateName("torch._dynamo"),
    "dynamo_frames": PrivateName("torch._dynamo.eval_frame"),
    "supports_compile_pass": PrivateName(
        "torch._dynamo.convert_frame.CatchErrorsWrapper",
        since=(2, 13),
        without="graph breaks and recompilations of compiled code are not reported",
    ),
    "compile_kernel": PrivateName("torch.cuda._compile_kernel", since=(2, 8)),
    "current_stream_in_c": PrivateName("torch._C._dynamo.utils.get_current_stream", since=(2, 15)),
    "inductor": PrivateName("torch._inductor"),
    "flex_attention_operator": PrivateName("torch._higher_order_ops.flex_attention"),
    "fake_tensors": PrivateName("torch._subclasses.fake_tensor"),
    "FakeTensorMode": PrivateName("torch._subclasses.fake_tensor.FakeTensorMode"),
    "decompositions": PrivateName("torch._decomp"),
    "fake_process_group": PrivateName("torch.testing._internal.distributed.fake_pg"),
    # -- torch.distributed: a torch can be built without it
    "world": PrivateName(f"{_C10D_PYTHON}._world", built_with=_DISTRIBUTED),
    "Backend": PrivateName(f"{_C10D}.Backend", built_with=_DISTRIBUTED),
    "Work": PrivateName(f"{_C10D}.Work", built_with=_DISTRIBUTED),
    "FakeWork": PrivateName(f"{_C10D}.FakeWork", since=(2, 7), built_with=_DISTRIBUTED),
    "work_from_future": PrivateName(f"{_C10D}._create_work_from_future", built_with=_DISTRIBUTED),
    "PythonCallbackWork": PrivateName(
        f"{_C10D}.PythonCallbackWork",
        since=(2, 10),
        without="a barrier with async_op=True is counted where it starts, not where it is waited for",
        built_with=_DISTRIBUTED,
    ),
    "ProcessGroup": PrivateName(f"{_C10D}.ProcessGroup", built_with=_DISTRIBUTED),
    "ProcessGroupGloo": PrivateName(f"{_C10D}.ProcessGroupGloo", late=True, built_with="gloo"),
    "register_backend": PrivateName(
        f"{_C10D}.ProcessGroup._register_backend", late=True, built_with=_DISTRIBUTED
    ),
    "get_backend": PrivateName(f"{_C10D}.ProcessGroup._get_backend", late=True, built_with=_DISTRIBUTED),
    "device_types": PrivateName(f"{_C10D}.ProcessGroup._device_types", late=True, built_with=_DISTRIBUTED),
    "start_coalescing": PrivateName(
        f"{_C10D}.ProcessGroup._start_coalescing", late=True, built_with=_DISTRIBUTED
    ),
    "end_coalescing": PrivateName(
        f"{_C10D}.ProcessGroup._end_coalescing", late=True, built_with=_DISTRIBUTED
    ),
    "default_store": PrivateName(f"{_C10D_PYTHON}._get_default_store", late=True, built_with=_DISTRIBUTED),
    "resolve_process_group": PrivateName(f"{_C10D_PYTHON}._resolve_process_group", built_with=_DISTRIBUTED),
    "validate_global_plan": PrivateName("torch.distributed.checkpoint.default_planner._validate_global_plan"),
    "compare_ranks": PrivateName(
        f"{_C10D_PYTHON}._create_process_group_wrapper", late=True, built_with="gloo"
    ),
    "dedup_save_plans": PrivateName("torch.distributed.checkpoint.default_planner.dedup_save_plans"),
    "CheckpointWrapper": PrivateName("torch.distributed.checkpoint.utils._DistWrapper.__init__"),
    "broadcast_state": PrivateName("torch.distributed.optim.zero_redundancy_optimizer._broadcast_object"),
    "receive_stage_meta": PrivateName(
        "torch.distributed.pipelining.stage.PipelineStage._recv_meta", since=(2, 13)
    ),
    "verify_params": PrivateName(
        "torch.distributed._verify_params_across_processes", late=True, built_with=_DISTRIBUTED
    ),
}


def _version() -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    return (int(match[1]), int(match[2])) if match is not None else NEWEST


VERSION = _version()

if VERSION < OLDEST:
    raise UsageError(
        f"torch {torch.__version__} is too old: Gapless needs torch {OLDEST[0]}.{OLDEST[1]} or newer"
    )


def __getattr__(name: str) -> Any:
    entry = NAMES.get(name)
    if entry is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = _resolve(entry.path)
    except AttributeError:
        if entry.since <= VERSION <= entry.until and _built_with(entry.built_with):
            raise UsageError(
                f"torch {torch.__version__} has no {entry.path}, which Gapless needs: it is tested with "
                f"torch {_tested_versions()}"
            ) from None
        value = None
    if not entry.late:
        globals()[name] = value
    return value


def place(name: str) -> tuple[Any, str]:
    """Return the object that holds the name, and the attribute: what to replace.

    >>> place("run_backward")[1]
    '_engine_run_backward'
    """
    return _owner(NAMES[name].path)


def path(name: str) -> str:
    """Return the path of a name without importing it: ``path("dynamo")`` is ``"torch._dynamo"``."""
    return NAMES[name].path


def missing_note(name: str) -> str:
    """Return a note for reports on what does not work without the name."""
    return f"torch {VERSION[0]}.{VERSION[1]} has no {NAMES[name].path}: {NAMES[name].without}"


def untested_note() -> str:
    """Return a note that this torch is newer than the tested versions; "" if it is not."""
    if VERSION <= NEWEST:
        return ""
    return (
        f"torch {torch.__version__} is newer than the versions Gapless is tested with ({_tested_versions()})"
    )


def _resolve(path: str) -> Any:
    owner, attribute = _owner(path)
    try:
        return getattr(owner, attribute)
    except AttributeError:
        try:
            return importlib.import_module(path)  # a module that nothing has imported yet
        except ImportError:
            raise AttributeError(path) from None


def _owner(path: str) -> tuple[Any, str]:
    """Return the object that holds the last part of `path`, importing modules on the way, and that part."""
    parts = path.split(".")
    owner: Any = sys.modules[parts[0]]
    for end, part in enumerate(parts[1:-1], start=2):
        following = getattr(owner, part, None)
        if following is None:
            try:
                following = importlib.import_module(".".join(parts[:end]))
            except ImportError:
                raise AttributeError(path) from None
        owner = following
    return owner, parts[-1]


def _built_with(part: str) -> bool:
    """Whether this torch is built with `part`; always for ""."""
    if part == "cuda":
        return torch.version.cuda is not None
    return not part or (part == _DISTRIBUTED and torch.distributed.is_available())


def _tested_versions() -> str:
    return f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
