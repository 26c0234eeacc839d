"""One name for the binary, the multiclass and the multilabel form of a metric."""

from __future__ import annotations

import inspect
import sys
import textwrap
from typing import Any, ClassVar

from gapless.metrics.metric import Metric

EMPTY = inspect.Parameter.empty
PLACES = (
    "beta", "min_precision", "min_recall", "min_sensitivity", "min_specificity", "n_bins", "norm",
    "threshold", "thresholds", "num_classes", "num_labels", "squared", "multiclass_mode", "weights",
    "normalize", "average", "max_fpr", "multidim_average", "top_k", "ignore_index", "validate_args",
    "zero_division",
)  # fmt: skip
"""The arguments of forms in the order that TorchMetrics has them in under the name for all tasks."""


class Task(Metric):
    """``Name(task="multiclass", num_classes=10, …)`` makes the metric of that task.

    A subclass stands below its forms, ``BinaryName``, ``MulticlassName`` and ``MultilabelName``, as far as
    there are any, and takes their arguments. Its description is followed by the names of the forms.
    """

    kinds: ClassVar[tuple[str, ...]] = ("Binary", "Multiclass", "Multilabel")
    """What the names of the forms begin with, in TorchMetrics' order."""
    defaults: ClassVar[dict[str, Any]] = {}
    """Of arguments that have another default here than in the forms, or none there."""
    unplaced: ClassVar[tuple[str, ...]] = ()
    """Arguments of the forms that are taken by name only."""
    forms: ClassVar[dict[str, type[Metric]]] = {}
    """By task."""
    arguments: ClassVar[dict[str, Any]] = {}
    """With their defaults, in order; ``inspect.Parameter.empty`` for one that must be given."""

    def __new__(cls, task: str, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(cls.arguments, args, strict=False))
        if len(args) > len(cls.arguments):
            raise TypeError(f"{cls.__name__} takes at most {1 + len(cls.arguments)} positional arguments")
        for name in given:
            if name in kwargs:
                raise TypeError(f"{cls.__name__} got multiple values for argument {name!r}")
        options = {**cls.arguments, **given, **kwargs}
        form = cls._form(task)
        for name, value in options.items():
            if value is EMPTY:
                raise TypeError(f"{cls.__name__} is missing the argument {name!r}")
        return cls._make(form, options)

    @classmethod
    def _form(cls, task: str) -> type[Metric]:
        chosen = str(getattr(task, "value", task)).lower()
        if chosen not in cls.forms:
            known = [name.upper() for name in cls.forms]
            raise ValueError(f"Invalid Classification: expected one of {known}, but got {task}.")
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
            placed = cls.all_arguments().items()
            cls.arguments = {name: value for name, value in placed if name not in cls.unplaced}
            made = [f":class:`~gapless.metrics.{name}`" for name in names]
            listed = f"{', '.join(made[:-1])} or {made[-1]}"
            told = textwrap.fill(f"By task it is {listed}, which describe the arguments and the inputs.", 100)
            cls.__doc__ = f"{inspect.cleandoc(cls.__doc__ or '')}\n\n{told}"
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
        """The arguments of all forms with their defaults, in order."""
        known = {"num_classes": None, "num_labels": None, **cls.defaults}
        found = dict(cls.defaults)
        for form in cls.forms.values():
            for one in list(inspect.signature(form.__init__).parameters.values())[1:]:
                if one.kind is not one.VAR_KEYWORD:
                    found[one.name] = known.setdefault(one.name, one.default)
        return dict(sorted(found.items(), key=lambda one: PLACES.index(one[0])))
