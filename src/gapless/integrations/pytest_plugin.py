"""The pytest plugin: tests in which the host may not wait for the GPU, with a GPU or without one.

It is loaded into every pytest run of an environment that has Gapless, so it imports and does nothing until a
test asks for it: by `@pytest.mark.max_waits`, by the fixtures `waits` and `no_waits`, or for all tests by
``--waits`` and the option ``gapless_max_waits``.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gapless.integrations._pytest_summary import TestWaits
    from gapless.integrations._pytest_watch import TestWatch, WaitCounter, WaitLimit

_MARK = "max_waits"
_RACES = "no_races"
_FIXTURES = frozenset({"waits", "no_waits"})
_watch: pytest.StashKey[TestWatch] = pytest.StashKey()
_bound: pytest.StashKey[WaitLimit] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gapless", "syncs with the GPU (Gapless)")
    group.addoption(
        "--waits",
        action="store_true",
        help="run every test on the GPU, or on an emulated one, and list the lines that sync",
    )
    group.addoption(
        "--gapless-device",
        choices=("auto", "emulated", "real"),
        help="where watched tests run: on the GPU if there is one (auto, the default), or on an emulated one",
    )
    group.addoption(
        "--gapless-gpu", metavar="NAME", help="the GPU to emulate: A100 (the default), H100, T4, …"
    )
    group.addoption(
        "--gapless-dry", action="store_true", help="run watched tests without values on the emulated GPU"
    )
    parser.addini("gapless_device", "auto, emulated or real (see --gapless-device)", default="auto")
    parser.addini("gapless_gpu", "the GPU to emulate (see --gapless-gpu)", default="")
    parser.addini("gapless_max_waits", "how many syncs each test without its own mark may have")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{_MARK}(limit, *, per_step): the CPU may wait for the GPU this many times in the test, or in "
        "each steady training step of it (Gapless)",
    )
    config.addinivalue_line(
        "markers",
        f"{_RACES}: all accesses to the same memory, by streams or by the CPU, must be ordered in the "
        "test, which runs on the emulated GPU (Gapless)",
    )
    config.pluginmanager.register(_Summary(), "gapless-summary")


def _mark(item: pytest.Item) -> pytest.Mark | None:
    """Return the mark that applies: a parameter's before its function's, a function's before its class's."""
    own = [mark for mark in item.own_markers if mark.name == _MARK]
    return own[-1] if own else item.get_closest_marker(_MARK)


def _is_ours(item: pytest.Item, name: str) -> bool:
    """Whether a fixture is the plugin's own: a test suite may have one of the same name."""
    fixture_info = getattr(item, "_fixtureinfo", None)
    definitions = fixture_info.name2fixturedefs.get(name) if fixture_info is not None else None
    return definitions is not None and len(definitions) > 0 and definitions[-1].func.__module__ == __name__


def _is_watched(item: pytest.Item) -> bool:
    """Whether this test is watched."""
    if _mark(item) is not None or item.get_closest_marker(_RACES) is not None:
        return True
    if any(_is_ours(item, name) for name in _FIXTURES.intersection(getattr(item, "fixturenames", ()))):
        return True
    return bool(item.config.getoption("--waits") or item.config.getini("gapless_max_waits"))


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, None]:
    """Set up the device before the test's fixtures create anything on it."""
    reason = ""
    if _is_watched(item):
        from gapless.integrations import _pytest_watch

        try:
            races = item.get_closest_marker(_RACES) is not None
            item.stash[_bound] = _pytest_watch.limit_for_test(_mark(item), item.config, races)
            item.stash[_watch] = _pytest_watch.begin(item.config, races)
        except _pytest_watch.WatchRefused as refused:
            reason = str(refused)
    outcome = yield
    if reason:
        outcome.force_exception(pytest.fail.Exception(reason, pytrace=False))


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    """Count what waits in the test itself; its fixtures may wait."""
    watch = item.stash.get(_watch, None)
    if watch is None:
        yield
        return
    watch.count_from_here()
    outcome = yield
    watch.done()
    if outcome.excinfo is None:
        reason = item.stash[_bound].explain_failure(watch)
        if reason:
            outcome.force_exception(pytest.fail.Exception(reason, pytrace=False))


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Remove the device after the last fixture has released it."""
    yield
    watch = item.stash.get(_watch, None)
    if watch is not None:
        del item.stash[_watch]
        watch.end()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    """Attach the test's waits to its report: with pytest-xdist it travels to the main process."""
    outcome = yield
    watch = item.stash.get(_watch, None)
    if watch is not None and call.when == "call":
        outcome.get_result().gapless_waits = watch.seen()


class _Summary:
    """Collects the waits from the reports, and lists them at the end."""

    def __init__(self) -> None:
        self._tests: dict[str, TestWaits] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test_waits = getattr(report, "gapless_waits", None)
        if test_waits is not None:
            self._tests[report.nodeid] = test_waits

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._tests:
            from gapless.integrations import _pytest_summary

            _pytest_summary.write(terminalreporter, self._tests)


@pytest.fixture
def waits(request: pytest.FixtureRequest) -> WaitCounter:
    """What the host has waited for in this test so far: `waits.count`, `waits.session`, `waits.reset()`."""
    from gapless.integrations._pytest_watch import WaitCounter

    return WaitCounter(request.node.stash[_watch])


@pytest.fixture
def no_waits(request: pytest.FixtureRequest) -> Any:
    """Forbid the host to wait: in the blocks ``with no_waits():``, or in the whole test if it has none.

    A block raises at the line that waits.
    """
    return request.node.stash[_bound].no_waits_fixture()
