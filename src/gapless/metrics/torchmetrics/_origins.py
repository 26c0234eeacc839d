"""From unwaited classes and wrapped methods to their originals."""

from __future__ import annotations

from typing import Any

ORIGINS: dict[type, type] = {}
"""The original class of each unwaited class."""


def waited_class(cls: type) -> type:
    """Return the original of an unwaited class; other classes are returned unchanged."""
    return ORIGINS.get(cls, cls)


def is_unwaited(thing: object) -> bool:
    """Whether `thing` has been unwaited."""
    return type(thing) in ORIGINS


def wrapped_function(metric: Any, name: str) -> Any:
    """Return the function behind the object's method `name`, without TorchMetrics' wrapper."""
    function = metric.__dict__.get(name)
    while not hasattr(function, "__func__") and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return getattr(function, "__func__", None)
