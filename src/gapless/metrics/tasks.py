"""One name for the binary, the multiclass and the multilabel form of a metric."""

from __future__ import annotations

import inspect
import sys
import textwrap
from typing import Any, ClassVar

from gapless.metrics.metric import Metric

REQUIRED = inspect.Parameter.empty
"""The default of an argument that must be given."""
ARGUMENT_ORDER = (
    "beta", "min_precision", "min_recall", "min_sensitivity", "min_specificity", "n_bins", "norm",
    "threshold", "thresholds", "num_classes", "num_labels", "squared", "multiclass_mode", "weights",
    "normalize", "average", "max_fpr", "multidim_average", "top_k", "ignore_index", "validate_args",
    "zero_division",
)  # fmt: skip
"""TorchMetrics' order of the forms' arguments under the name for all tasks."""


class Task(Metric):
    """``Name(task="multiclass", num_classes=10, …)`` creates the metric of that task.

    A subclass is defined after its forms, ``BinaryName``, ``MulticlassName`` and ``MultilabelName`` (those
    that exist), and takes their arguments. The names of the forms are added to its docstring.
    """

    kinds: ClassVar[tuple[str, ...]] = ("Binary", "Multiclass", "Multilabel")
    """Prefixes of the forms' names, in TorchMetrics' order."""
    defaults: ClassVar[dict[str, Any]] = {}
    """Defaults that differ from those of the forms, or that these lack."""
    unplaced: ClassVar[tuple[str, ...]] = ()
    """Arguments of the forms that are keyword-only here."""
    forms: ClassVar[dict[str, type[Metric]]] = {}
    """The metric class of each task."""
    arguments: ClassVar[dict[str, Any]] = {}
    """Arguments with their defaults, in order; `REQUIRED` for one that must be given."""

    def __new__(cls, task: str, *args: Any, **kwargs: Any) -> Any:
        positional = dict(zip(cls.arguments, args, strict=False))
        if len(args) > len(cls.arguments):
            raise TypeError(f"{cls.__name__} takes at most {1 + len(cls.arguments)} positional arguments")
        for name in positional:
            if name in kwargs:
                raise TypeError(f"{cls.__name__} got multiple values for argument {name!r}")
        options = {**cls.arguments, **positional, **kwargs}
        form = cls._form_for(task)
        for name, value in options.items():
            if value is REQUIRED:
                raise TypeError(f"{cls.__name__} is missing the argument {name!r}")
        return cls._make(form, options)

    @classmethod
    def _form_for(cls, task: str) -> type[Metric]:
        chosen = str(getattr(task, "value", task)).lower()
        if chosen not in cls.forms:
            tasks = [name.upper() for name in cls.forms]
            raise ValueError(f"Invalid Classification: expected one of {tasks}, but got {task}.")
        return cls.forms[chosen]

    @classmethod
    def _make(cls, form: type[Metric], options: dict[str, Any]) -> Metric:
        taken = inspect.signature(form.__init__).parameters
        for name in ("num_classes", "num_labels", "top_k"):
            if name in taken and name in options and not isinstance(options[name], int):
                raise ValueError(f"`{name}` is expected to be `int` but `{type(options[name])} was passed.`")
        return form(**{k: v for k, v in options.items() if k in taken or k not in cls.arguments})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        beside = vars(sys.modules[cls.__module__])
        names = [name for kind in cls.kinds if (name := kind + cls.__name__) in beside]
        if names:
            cls.forms = {beside[name].task: beside[name] for name in names}
            all_arguments = cls.all_arguments().items()
            cls.arguments = {name: value for name, value in all_arguments if name not in cls.unplaced}
            links = [f":class:`~gapless.metrics.{name}`" for name in names]
            listed = f"{', '.join(links[:-1])} or {links[-1]}"
            sentence = textwrap.fill(
                f"By task it is {listed}, which describe the arguments and the inputs.", 100
            )
            cls.__doc__ = f"{inspect.cleandoc(cls.__doc__ or '')}\n\n{sentence}"
        kinds = inspect.Parameter
        cls.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                kinds("task", kinds.POSITIONAL_OR_KEYWORD),
                *(kinds(name, kinds.POSITIONAL_OR_KEYWORD, default=d) for name, d in cls.arguments.items()),
                kinds("kwargs", kinds.VAR_KEYWORD),
            ]
        )

    @classmethod
    def all_arguments(cls) -> dict[str, Any]:
        """Return the arguments of all forms with their defaults, in order."""
        defaults = {"num_classes": None, "num_labels": None, **cls.defaults}
        arguments = dict(cls.defaults)
        for form in cls.forms.values():
            for parameter in list(inspect.signature(form.__init__).parameters.values())[1:]:
                if parameter.kind is not parameter.VAR_KEYWORD:
                    arguments[parameter.name] = defaults.setdefault(parameter.name, parameter.default)
        return dict(sorted(arguments.items(), key=lambda item: ARGUMENT_ORDER.index(item[0])))
