"""Watch a test for the pytest plugin: its device, its waits and its limits."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec
import pytest

from gapless.analyze import WARM_UP, report
from gapless.errors import GaplessError, RaceError, WaitError
from gapless.integrations import _pytest_summary
from gapless.model import Session
from gapless.model.wording import count, number, rate

_emulators: dict[tuple[str, bool], Any] = {}
"""One emulated machine per GPU, so that what a module's fixture puts there is visible to all its tests."""


class TestWatch(Protocol):
    """The device on which a test runs, and what waited for it since `count_from_here`."""

    def count_from_here(self) -> None: ...

    def session(self) -> Session: ...

    def done(self) -> None:
        """Record that the test itself has ended, before its fixtures do."""

    def seen(self) -> _pytest_summary.TestWaits: ...

    def end(self) -> None: ...


class WatchRefused(Exception):
    """The reason why a test cannot be watched."""


def begin(config: pytest.Config, races: bool = False) -> TestWatch:
    """Set up the device that the options choose; races are only visible on the emulated one.

    Raises:
        WatchRefused: the device is not available.
    """
    kind = config.getoption("--gapless-device") or config.getini("gapless_device")
    if kind not in ("auto", "emulated", "real"):
        raise WatchRefused(f"gapless_device is {kind!r}, but must be auto, emulated or real")
    try:
        import torch
    except ModuleNotFoundError:
        raise WatchRefused("a test that is watched for syncs needs PyTorch: pip install torch") from None
    real = torch.cuda.is_available()
    if kind == "real" and not real:
        raise WatchRefused("gapless_device is 'real', but there is no GPU that PyTorch can use")
    if kind == "real" and races:
        raise WatchRefused(
            "gapless_device is 'real', but races are not visible on a real GPU: it gives wrong numbers "
            "without an error"
        )
    try:
        if real and kind != "emulated" and not races:
            from gapless.integrations._real_gpu import RealWatch

            return _KeptWatch(RealWatch())
        gpu = config.getoption("--gapless-gpu") or config.getini("gapless_gpu") or "A100"
        return _KeptWatch(EmulatedWatch(gpu, config.getoption("--gapless-dry")))
    except GaplessError as error:
        raise WatchRefused(str(error)) from None


class EmulatedWatch:
    """The emulated device, from the set-up of a test's fixtures until their end."""

    def __init__(self, gpu: str, dry: bool = False) -> None:
        from gapless.emulation.emulator import Emulator, current
        from gapless.emulation.options import EmulatorOptions

        if current() is not None:
            raise WatchRefused(
                "an emulated device is already active: this test is watched inside gapless.emulate()"
            )
        if (gpu, dry) not in _emulators:
            _emulators[gpu, dry] = Emulator(EmulatorOptions(gpu, dry=dry))
        self._emulator = _emulators[gpu, dry]
        self._placed = 0
        self.count_from_here()
        self._emulator.start()
        atexit.register(self.end)

    def count_from_here(self) -> None:
        self._emulator.count_afresh()
        self._placed = self._emulator.core.placement.placed

    def session(self) -> Session:
        session: Session = self._emulator.session()
        here = msgspec.structs.replace(
            session.environment, unused=self._placed == self._emulator.core.placement.placed
        )
        return msgspec.structs.replace(session, environment=here)

    def end(self) -> None:
        atexit.unregister(self.end)
        self._emulator.stop(forget=False)


class _KeptWatch:
    """A watch that keeps what it recorded when the test is over."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._session: Session | None = None

    def count_from_here(self) -> None:
        self._session = None
        self._device.count_from_here()

    def session(self) -> Session:
        session: Session = self._session or self._device.session()
        return session

    def done(self) -> None:
        self._session = self._device.session()

    def seen(self) -> _pytest_summary.TestWaits:
        return _pytest_summary.summarize_waits(self.session())

    def end(self) -> None:
        self._device.end()


class WaitLimit:
    """How often the host may wait: in total (`limit`), per steady step (`per_step`), or not in blocks.

    With `races`, unordered accesses to the same memory are not allowed.
    """

    def __init__(
        self, limit: float | None, per_step: float | None, default: float | None, races: bool = False
    ) -> None:
        self.limit = limit
        self.races = races
        self.per_step = per_step
        self.default = default
        self._fixture = self._block = False

    def no_waits_fixture(self) -> Any:
        """Return the context manager that the fixture `no_waits` gives; a test that never enters it is
        checked as a whole."""
        self._fixture = True

        @contextmanager
        def no_waits() -> Iterator[None]:
            from gapless.capture.guard import no_waits as guard

            self._block = True
            try:
                with guard():
                    yield
            except (RaceError, WaitError) as error:  # without the frames of the emulated device
                pytest.fail(str(error), pytrace=False)

        return no_waits

    def explain_failure(self, watch: TestWatch) -> str:
        """Return why the test fails; "" if it does not."""
        session = watch.session()
        limit = 0 if self._fixture and not self._block else self.limit
        has_limit = limit is not None or self.per_step is not None or self.races
        if session.environment.unused:
            if has_limit:
                return 'the test put nothing on the GPU, so there is nothing to check: is `device` "cuda"?'
            return ""
        if self.races and session.races:
            races = [item for item in report(session).findings if item.is_race]
            details = _pytest_summary.describe_findings(session, races)
            return f"{count(len(races), 'race')} in this test\n\n{details}"
        limit = limit if has_limit else self.default
        waits = session.waits
        if limit is not None and waits > limit:
            return _with_findings(f"{count(waits, 'sync')} in this test, {number(limit)} allowed", session)
        return self._check_steps(session) if self.per_step is not None else ""

    def _check_steps(self, session: Session) -> str:
        steps = report(session).steps
        if not steps.seen:
            return (
                "no training step was seen, so per_step cannot be checked: a step ends with an optimizer's "
                "step(), profiler.step() or gapless.step()"
            )
        if steps.seen <= WARM_UP:
            return (
                f"only {count(steps.seen, 'training step')}, of which the first {WARM_UP} warm up and do "
                f"not count: run {WARM_UP + 1} or more"
            )
        if steps.waits_per_step > (self.per_step or 0):
            often = rate(steps.waits_per_step, "sync", step="training step")
            return _with_findings(f"{often}, {number(self.per_step or 0)} allowed", session)
        return ""


def limit_for_test(mark: pytest.Mark | None, config: pytest.Config, races: bool = False) -> WaitLimit:
    """Return the limit from a test's mark, or from the ini file for tests without a mark."""
    if mark is None:
        text = config.getini("gapless_max_waits")
        return WaitLimit(None, None, _number(text, "gapless_max_waits") if text else None, races)
    if (
        len(mark.args) > 1
        or set(mark.kwargs) - {"limit", "per_step"}
        or (mark.args and "limit" in mark.kwargs)
    ):
        raise WatchRefused(_USAGE)
    limit = mark.args[0] if mark.args else mark.kwargs.get("limit")
    per_step = mark.kwargs.get("per_step")
    if limit is None and per_step is None:
        raise WatchRefused(_USAGE)
    values = [value if value is None else _number(value, "max_waits") for value in (limit, per_step)]
    return WaitLimit(values[0], values[1], None, races)


_USAGE = "max_waits takes a number of syncs: @pytest.mark.max_waits(0), or @pytest.mark.max_waits(per_step=1)"


def _number(value: Any, option: str) -> float:
    try:
        limit = float(value)
    except (TypeError, ValueError):
        limit = -1.0
    if limit < 0 or isinstance(value, bool):
        raise WatchRefused(f"{option} is {value!r}, but must be a number of syncs, 0 or more")
    return limit


def _with_findings(headline: str, session: Session) -> str:
    return f"{headline}\n\n{_pytest_summary.describe_findings(session)}"


class WaitCounter:
    """What the host has waited for since the test began: the value of the fixture `waits`."""

    def __init__(self, watch: TestWatch) -> None:
        self._watch = watch

    @property
    def count(self) -> int:
        """How many times the host has waited."""
        return self.session.waits

    @property
    def session(self) -> Session:
        """Everything recorded, as a `Session`."""
        return self._watch.session()

    def reset(self) -> None:
        """Start counting anew."""
        self._watch.count_from_here()
