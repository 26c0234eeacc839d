"""One name for the binary, the multiclass and the multilabel form of a metric."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any, ClassVar

from gapless.metrics.metric import Metric


def by_task(*forms: Any) -> dict[str, Any]:
    """Forms of a metric under the names of their tasks, in this order."""
    return {form.task: form for form in forms}


class Task(Metric):
    """``Name(task="multiclass", num_classes=10, …)`` makes the metric of that task.

    A subclass lists the forms by task and the arguments with their defaults, in order. One that must be given
    has ``inspect.Parameter.empty`` there. Its description is followed by the names of the forms.
    """

    forms: ClassVar[dict[str, type[Metric]]] = {}
    arguments: ClassVar[dict[str, Any]] = {}

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
            if value is inspect.Parameter.empty:
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
        made = [f":class:`~gapless.metrics.{form.__name__}`" for form in cls.forms.values()]
        if made and cls.__doc__:
            listed = f"{', '.join(made[:-1])} or {made[-1]}"
            told = textwrap.fill(f"By task it is {listed}, which describe the arguments and the inputs.", 100)
            cls.__doc__ = f"{inspect.cleandoc(cls.__doc__)}\n\n{told}"
        kinds = inspect.Parameter
        cls.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                kinds("task", kinds.POSITIONAL_OR_KEYWORD),
                *(kinds(name, kinds.POSITIONAL_OR_KEYWORD, default=d) for name, d in cls.arguments.items()),
                kinds("kwargs", kinds.VAR_KEYWORD),
            ]
        )
