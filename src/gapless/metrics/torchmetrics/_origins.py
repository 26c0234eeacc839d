"""Of which class each unwaited class was made, and of which function a method."""

from __future__ import annotations

from typing import Any

ORIGINS: dict[type, type] = {}


def waited_class(cls: type) -> type:
    """The class of which `cls` is the unwaited one, or `cls` itself."""
    return ORIGINS.get(cls, cls)


def is_unwaited(thing: object) -> bool:
    """Whether `thing` has been unwaited."""
    return type(thing) in ORIGINS


def wrapped_function(metric: Any, name: str) -> Any:
    """The function that the object's own `name` is, without what TorchMetrics has wrapped around it."""
    found = metric.__dict__.get(name)
    while not hasattr(found, "__func__") and hasattr(found, "__wrapped__"):
        found = found.__wrapped__
    return getattr(found, "__func__", None)
