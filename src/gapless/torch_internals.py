"""The private names of torch that Gapless stands on, and the versions that have them.

The only module that asks torch for one. A name is looked up when it is first asked for. Where this torch has
none, it is None if its version is known to lack it, else an error in one line. A torch that is too old is one
as soon as this module is imported.

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
"""The versions of torch that Gapless is tried with (``make versions``)."""


class Name(NamedTuple):
    """A private name of torch: where it is, which versions have it, and what is off without it."""

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

NAMES: dict[str, Name] = {
    # -- modes and dispatch
    "DisableTorchFunction": Name("torch._C.DisableTorchFunction"),
    "DisableTorchDispatch": Name("torch._C._DisableTorchDispatch"),
    "TorchDispatchMode": Name("torch.utils._python_dispatch.TorchDispatchMode"),
    "DispatchKey": Name("torch._C.DispatchKey"),
    "DispatchKeySet": Name("torch._C.DispatchKeySet"),
    "ExcludedKeys": Name("torch._C._ExcludeDispatchKeyGuard"),
    "SetExcludedKey": Name("torch._C._SetExcludeDispatchKeyGuard"),
    "without_dispatch_modes": Name("torch.utils._python_dispatch._disable_current_modes"),
    "OperatorNamespace": Name("torch._ops._OpNamespace"),
    "dump_of_operator": Name("torch._C._dispatch_dump"),
    "OperatorOverload": Name("torch._ops.OpOverload"),
    "HigherOrderOperator": Name("torch._ops.HigherOrderOperator"),
    "Operator": Name("torch._ops.OpOverload"),
    "bf16_supported": Name("torch.ops.mkldnn._is_mkldnn_bf16_supported", built_with="mkldnn"),
    "has_any_kernel": Name("torch._C._dispatch_has_kernel"),
    "no_torch_function": Name("torch._C._disabled_torch_function_impl"),
    "current_dispatch_mode": Name("torch.utils._python_dispatch._get_current_dispatch_mode"),
    "pop_dispatch_mode": Name("torch.utils._python_dispatch._pop_mode"),
    "current_function_mode": Name("torch.overrides._get_current_function_mode"),
    "without_function_mode": Name("torch.overrides._pop_mode_temporarily"),
    "pop_function_mode": Name("torch._C._pop_torch_function_stack"),
    "asks_functions": Name("torch._C._is_torch_function_mode_enabled"),
    "count_function_modes": Name("torch._C._len_torch_function_stack"),
    "without_modes": Name("torch.utils._python_dispatch._disable_current_modes"),
    "dispatch_mode_of": Name("torch._C._get_dispatch_mode"),
    "DispatchModeKey": Name("torch._C._TorchDispatchModeKey"),
    "no_torch_dispatch": Name("torch._C._disabled_torch_dispatch_impl"),
    "has_kernel": Name("torch._C._dispatch_has_kernel_for_dispatch_key"),
    "names_of_operators": Name("torch._C._dispatch_get_all_op_names"),
    "schemas_of_operator": Name("torch._C._jit_get_schemas_for_operator"),
    "key_is_excluded": Name("torch._C._dispatch_tls_is_dispatch_key_excluded"),
    "exclude_key": Name("torch._C._dispatch_tls_set_dispatch_key_excluded"),
    "key_is_included": Name("torch._C._dispatch_tls_is_dispatch_key_included"),
    "include_key": Name("torch._C._dispatch_tls_set_dispatch_key_included"),
    "registered_in_python": Name("torch.library._impls"),
    "library_fallback": Name(
        "torch.library.Library.fallback",
        since=(2, 5),
        without='torch.autocast("cpu") also casts tensors on the GPU',
    ),
    "lift_only_cpu_tensors": Name("torch._C._set_only_lift_cpu_tensors"),
    # -- tensors and storages
    "TensorBase": Name("torch._C.TensorBase"),
    "neg_view": Name("torch._neg_view"),
    "conj_view": Name("torch._conj"),
    "is_alias_of": Name("torch._C._is_alias_of"),
    "has_storage": Name("torch._C._has_storage"),
    "weak_ref_expired": Name("torch.UntypedStorage._expired"),
    "storage_of_weak_ref": Name("torch.UntypedStorage._new_with_weak_ptr"),
    "write_storage_to_file": Name("torch.UntypedStorage._write_file"),
    "free_weak_ref": Name("torch.UntypedStorage._free_weak_ref"),
    "functorch": Name("torch._C._functorch"),
    "storage_use_count": Name("torch._C._storage_Use_Count"),
    "default_device": Name("torch._GLOBAL_DEVICE_CONTEXT"),
    "device_constructors": Name("torch.utils._device._device_constructors"),
    "foreach_copy": Name("torch._foreach_copy_"),
    "foreach_norm": Name("torch._foreach_norm"),
    "foreach_zero": Name("torch._foreach_zero_"),
    "group_tensors": Name("torch.utils._foreach_utils._group_tensors_by_device_and_dtype", late=True),
    "fused_sdp_choice": Name("torch._fused_sdp_choice"),
    "sdp_priority_order": Name("torch._C._get_sdp_priority_order", since=(2, 6)),
    "semi_structured": Name("torch.sparse._semi_structured_conversions"),
    "pad_packed_sequence": Name("torch._pad_packed_sequence"),
    "parse_to": Name("torch._C._nn._parse_to", late=True),
    "jit_enabled": Name("torch.jit._state._enabled"),
    # -- autograd and modules
    "sequence_number": Name("torch._C._autograd._get_sequence_nr"),
    "current_node": Name("torch._C._current_autograd_node"),
    "override_stale_stream": Name(
        "torch._C._override_stale_capture_stream",
        since=(2, 13),
        without="a backward pass that reaches back before a CUDA graph's capture fails with CUDA's error",
    ),
    "below_autograd": Name("torch._C._AutoDispatchBelowAutograd"),
    "run_backward": Name("torch.autograd.graph._engine_run_backward", late=True),
    "module_apply": Name("torch.nn.Module._apply", late=True),
    "module_call": Name("torch.nn.Module._wrapped_call_impl"),
    "module_save": Name("torch.nn.Module._save_to_state_dict"),
    "module_load": Name("torch.nn.Module._load_from_state_dict"),
    "cudnn_enabled": Name("torch._C._get_cudnn_enabled"),
    # -- profilers
    "gather_traceback": Name("torch._C._profiler.gather_traceback"),
    "symbolize_tracebacks": Name("torch._C._profiler.symbolize_tracebacks"),
    "profiler_enabled": Name("torch.autograd._profiler_enabled"),
    "profiler_somewhere": Name("torch.autograd.profiler._is_profiler_enabled", late=True),
    "KinetoProfile": Name("torch.profiler.profiler._KinetoProfile"),
    "ProfilerConfig": Name("torch._C._profiler._ExperimentalConfig"),
    "disable_dynamo": Name("torch._compile._disable_dynamo"),
    # -- loaders
    "LoaderIter": Name("torch.utils.data.dataloader._BaseDataLoaderIter"),
    "MapFetcher": Name(f"{_LOADING}.fetch._MapDatasetFetcher"),
    "IterableFetcher": Name(f"{_LOADING}.fetch._IterableDatasetFetcher"),
    "worker_loop": Name(f"{_LOADING}.worker._worker_loop", late=True),
    # -- torch.cuda
    "LazySeedTracker": Name("torch._utils._LazySeedTracker"),
    "cuda_lazy_init": Name("torch.cuda._lazy_init", late=True),
    "cuda_initialized": Name("torch.cuda._initialized", late=True),
    "in_bad_fork": Name("torch.cuda._is_in_bad_fork", late=True),
    "cuda_thread_state": Name("torch.cuda._tls", late=True),
    "device_index": Name("torch.cuda._utils._get_device_index"),
    "record_memory_history": Name("torch.cuda.memory._record_memory_history", late=True),
    "memory_snapshot": Name("torch.cuda.memory._snapshot", late=True),
    "get_memory_metadata": Name("torch.cuda.memory._get_memory_metadata", since=(2, 10), late=True),
    "set_memory_metadata": Name("torch.cuda.memory._set_memory_metadata", since=(2, 10), late=True),
    # A build with CUDA has these; under emulation they are answered, with many more (`emulate.cuda_api`).
    "watch_out_of_memory": Name("torch._C._cuda_attach_out_of_memory_observer", late=True, built_with="cuda"),
    "memory_fraction": Name("torch._C._cuda_getMemoryFraction", late=True, built_with="cuda"),
    "FileWriter": Name("torch._C.PyTorchFileWriter", late=True),
    "C": Name("torch._C"),
    # -- compilers, changed when a script imports them
    "dynamo": Name("torch._dynamo"),
    "dynamo_frames": Name("torch._dynamo.eval_frame"),
    "supports_compile_pass": Name(
        "torch._dynamo.convert_frame.CatchErrorsWrapper",
        since=(2, 13),
        without="graph breaks and recompilations of compiled code are not reported",
    ),
    "compile_kernel": Name("torch.cuda._compile_kernel", since=(2, 8)),
    "current_stream_in_c": Name("torch._C._dynamo.utils.get_current_stream", since=(2, 15)),
    "inductor": Name("torch._inductor"),
    "flex_attention_operator": Name("torch._higher_order_ops.flex_attention"),
    "fake_tensors": Name("torch._subclasses.fake_tensor"),
    "FakeTensorMode": Name("torch._subclasses.fake_tensor.FakeTensorMode"),
    "decompositions": Name("torch._decomp"),
    "fake_process_group": Name("torch.testing._internal.distributed.fake_pg"),
    # -- torch.distributed: a torch can be built without it
    "world": Name(f"{_C10D_PYTHON}._world", built_with=_DISTRIBUTED),
    "Backend": Name(f"{_C10D}.Backend", built_with=_DISTRIBUTED),
    "Work": Name(f"{_C10D}.Work", built_with=_DISTRIBUTED),
    "FakeWork": Name(f"{_C10D}.FakeWork", since=(2, 7), built_with=_DISTRIBUTED),
    "work_from_future": Name(f"{_C10D}._create_work_from_future", built_with=_DISTRIBUTED),
    "PythonCallbackWork": Name(
        f"{_C10D}.PythonCallbackWork",
        since=(2, 10),
        without="a barrier with async_op=True is counted where it starts, not where it is waited for",
        built_with=_DISTRIBUTED,
    ),
    "ProcessGroup": Name(f"{_C10D}.ProcessGroup", built_with=_DISTRIBUTED),
    "ProcessGroupGloo": Name(f"{_C10D}.ProcessGroupGloo", late=True, built_with="gloo"),
    "register_backend": Name(f"{_C10D}.ProcessGroup._register_backend", late=True, built_with=_DISTRIBUTED),
    "get_backend": Name(f"{_C10D}.ProcessGroup._get_backend", late=True, built_with=_DISTRIBUTED),
    "device_types": Name(f"{_C10D}.ProcessGroup._device_types", late=True, built_with=_DISTRIBUTED),
    "start_coalescing": Name(f"{_C10D}.ProcessGroup._start_coalescing", late=True, built_with=_DISTRIBUTED),
    "end_coalescing": Name(f"{_C10D}.ProcessGroup._end_coalescing", late=True, built_with=_DISTRIBUTED),
    "default_store": Name(f"{_C10D_PYTHON}._get_default_store", late=True, built_with=_DISTRIBUTED),
    "resolve_process_group": Name(f"{_C10D_PYTHON}._resolve_process_group", built_with=_DISTRIBUTED),
    "validate_global_plan": Name("torch.distributed.checkpoint.default_planner._validate_global_plan"),
    "compare_ranks": Name(f"{_C10D_PYTHON}._create_process_group_wrapper", late=True, built_with="gloo"),
    "dedup_save_plans": Name("torch.distributed.checkpoint.default_planner.dedup_save_plans"),
    "CheckpointWrapper": Name("torch.distributed.checkpoint.utils._DistWrapper.__init__"),
    "broadcast_state": Name("torch.distributed.optim.zero_redundancy_optimizer._broadcast_object"),
    "receive_stage_meta": Name("torch.distributed.pipelining.stage.PipelineStage._recv_meta", since=(2, 13)),
    "verify_params": Name(
        "torch.distributed._verify_params_across_processes", late=True, built_with=_DISTRIBUTED
    ),
}


def _version() -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    return (int(found[1]), int(found[2])) if found is not None else NEWEST


VERSION = _version()

if VERSION < OLDEST:
    raise UsageError(
        f"torch {torch.__version__} is too old: Gapless needs torch {OLDEST[0]}.{OLDEST[1]} or newer"
    )


def __getattr__(name: str) -> Any:
    known = NAMES.get(name)
    if known is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = _found(known.path)
    except AttributeError:
        if known.since <= VERSION <= known.until and _built_with(known.built_with):
            raise UsageError(
                f"torch {torch.__version__} has no {known.path}, which Gapless needs: it is tested with "
                f"torch {_tried()}"
            ) from None
        value = None
    if not known.late:
        globals()[name] = value
    return value


def place(name: str) -> tuple[Any, str]:
    """The object that holds the name, and its attribute: what is to be replaced.

    >>> place("run_backward")[1]
    '_engine_run_backward'
    """
    return _owner(NAMES[name].path)


def path(name: str) -> str:
    """Where the name is, which imports nothing: ``path("dynamo")`` is ``"torch._dynamo"``."""
    return NAMES[name].path


def off(name: str) -> str:
    """What is not as it should be without the name, for a report; said where a script comes to it."""
    return f"torch {VERSION[0]}.{VERSION[1]} has no {NAMES[name].path}: {NAMES[name].without}"


def untried() -> str:
    """That this torch is newer than those Gapless is tried with, for a report; "" where it is not."""
    if VERSION <= NEWEST:
        return ""
    return f"torch {torch.__version__} is newer than the versions Gapless is tested with ({_tried()})"


def _found(path: str) -> Any:
    owner, attribute = _owner(path)
    try:
        return getattr(owner, attribute)
    except AttributeError:
        try:
            return importlib.import_module(path)  # a module that nothing has imported yet
        except ImportError:
            raise AttributeError(path) from None


def _owner(path: str) -> tuple[Any, str]:
    """What holds the last part of `path`; modules on the way are imported."""
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
    """Whether this torch has the part; without a name, all of them have."""
    if part == "cuda":
        return torch.version.cuda is not None
    return not part or (part == _DISTRIBUTED and torch.distributed.is_available())


def _tried() -> str:
    return f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
