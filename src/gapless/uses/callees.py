"""Well-known functions and methods, by the last word of their name: what they do with their arguments."""

from __future__ import annotations

SIZES = frozenset(
    {
        "arange", "as_strided", "bincount", "broadcast_to", "chunk", "empty", "expand", "eye",
        "interpolate", "linspace", "multinomial", "narrow", "new_empty", "new_ones", "new_zeros",
        "one_hot", "ones", "pad", "rand", "randint", "randn", "randperm", "repeat", "repeat_interleave",
        "reshape", "roll", "Size", "split", "split_with_sizes", "tensor_split", "tile", "topk",
        "tril_indices", "triu_indices", "unflatten", "unfold", "view", "zeros", "all_to_all_single",
        "full", "new_full",
    }
)  # fmt: skip
"""Take numbers as sizes, of a tensor or of its parts."""

TENSOR_FIRST = frozenset(
    {
        "bincount", "broadcast_to", "chunk", "expand", "interpolate", "multinomial", "narrow",
        "one_hot", "pad", "repeat_interleave", "reshape", "roll", "split", "tensor_split", "tile",
        "topk", "unflatten", "unfold",
    }
)  # fmt: skip
"""Of `SIZES`, those whose first argument as a function is the tensor itself."""

SHOWS = frozenset(
    {
        "print", "info", "debug", "warning", "warn", "error", "critical", "exception", "log",
        "log_metrics", "log_dict", "log_metric", "log_scalar", "add_scalar", "add_scalars",
        "add_histogram", "set_postfix", "set_postfix_str", "set_description", "set_description_str",
        "write", "writelines", "writerow", "plot", "scatter_plot", "title",
        "imshow", "savefig", "print_rank_0", "print_rank_last", "log_single_rank", "track", "dump",
        "dumps", "pprint", "echo", "report", "logger",
    }
)  # fmt: skip
"""Show or log what they get."""

TEXTS = frozenset({"str", "repr", "format", "join"})
"""Make a text of what they get."""

NUMBERS = frozenset(
    {
        "full", "new_full", "full_like", "uniform_", "normal_", "linspace", "logspace", "manual_seed",
        "manual_seed_all", "dropout", "set_num_threads",
    }
)  # fmt: skip
"""Functions and methods of torch that read the tensor that they get instead of a number, or refuse it."""

NUMBER_OPTIONS = frozenset({"alpha", "beta", "value", "p", "eps", "lr", "momentum", "scale_factor", "dim"})
"""Options of the same kind."""

FINITE = frozenset({"isnan", "isinf", "isfinite"})

THROUGH = frozenset(
    {
        "int", "float", "complex", "round", "abs", "pow", "sum", "min", "max", "divmod", "deepcopy",
        "copy", "next",
    }
)  # fmt: skip
"""Builtins that give back a number that was made of their argument, or one of their argument's elements."""

SEQUENCES = frozenset({"list", "tuple", "set", "sorted", "reversed", "iter", "filter", "frozenset", "deque"})
"""Give back the same elements."""

APPENDS = frozenset({"append", "appendleft", "extend", "add", "insert", "put", "put_nowait"})

RETURNS_ELEMENTS = frozenset({"pop", "popleft", "get", "get_nowait", "setdefault"})

RETENSOR = frozenset(
    {
        "tensor", "as_tensor", "from_numpy", "asarray", "FloatTensor", "LongTensor", "IntTensor",
        "BoolTensor", "Tensor", "new_tensor", "stack", "cat", "scalar_tensor",
    }
)  # fmt: skip
"""Make a tensor of numbers."""

TENSOR_METHODS = frozenset(
    {
        "mul", "mul_", "add_", "sub", "sub_", "div", "div_", "clamp", "clamp_", "clamp_min",
        "clamp_max", "fill_", "masked_fill", "masked_fill_", "where", "addcmul", "addcmul_", "addcdiv",
        "addcdiv_", "lerp", "lerp_", "copy_", "scatter_", "scatter", "maximum", "minimum", "full_like",
        "uniform_", "normal_", "index_fill_", "index_fill", "gt", "lt", "ge", "le", "eq", "ne", "pow_",
    }
)  # fmt: skip
"""Methods of tensors that compute with a number as well as with a tensor."""

TENSOR_MAKERS = TENSOR_METHODS | {
    "argmax", "argsort", "backward", "cross_entropy", "cumsum", "detach", "exp", "gather",
    "log_softmax", "matmul", "mse_loss", "norm", "relu", "sigmoid", "softmax", "square", "squeeze",
    "unsqueeze", "to", "cuda", "half", "bfloat16", "contiguous", "float", "new_zeros", "new_ones",
    "new_empty", "new_full", "masked_select",
}  # fmt: skip
"""Methods that only tensors have, or that give back a tensor of a tensor."""

PLAIN_RESULTS = frozenset(
    {
        "item",
        "tolist",
        "numpy",
        "size",
        "numel",
        "dim",
        "nelement",
        "data_ptr",
        "element_size",
    }
)
"""Methods of tensors whose result is none."""

NOT_CUDA_TENSORS = frozenset({"np", "numpy", "math", "random", "os", "time", "json", "sys", "re", "logging"})
"""Modules whose functions know no tensors."""

ARRAY_LIBRARIES = frozenset({"scipy", "sklearn", "cv2"})
"""Libraries beside NumPy whose functions compute with its arrays."""

SAME_SHAPE = frozenset(
    {
        "squeeze", "unsqueeze", "view", "reshape", "flatten", "clone", "detach", "contiguous", "long",
        "int", "float", "double", "half", "bool", "t", "to", "cuda", "type", "requires_grad_", "byte",
        "ravel", "permute", "transpose", "view_as", "type_as", "unbind",
    }
)  # fmt: skip
"""Methods of a selection whose result is as much of one."""

TO_CPU = frozenset({"item", "tolist", "cpu", "numpy"})

METADATA = frozenset(
    {
        "shape", "size", "numel", "nelement", "dtype", "device", "ndim", "dim", "is_cuda",
        "requires_grad", "__len__", "layout", "nbytes", "itemsize", "stride", "is_contiguous",
    }
)  # fmt: skip
"""Attributes of a tensor that the CPU knows without its values."""
COUNTS = frozenset({"shape", "size", "numel", "nelement", "__len__"})
"""Those of `METADATA` that say how many elements there are."""

LOOKS = frozenset(
    {
        "isinstance",
        "type",
        "id",
        "hasattr",
        "callable",
        "is_tensor",
        "issubclass",
        "getrefcount",
    }
)
"""Ask for no value."""

TRANSPARENT = ("torch/nn/modules/module.py", "torch/utils/_contextlib.py", "torch/amp/autocast_mode.py")
"""Library files whose functions return what the user's function returned."""
