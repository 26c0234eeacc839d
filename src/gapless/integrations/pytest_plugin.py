"""The pytest plugin: tests in which the host may not wait for the GPU, with a GPU or without one.

It is loaded into every pytest run of an environment that Gapless is installed in, so that it imports nothing,
and does nothing, until a test asks for it: by `@pytest.mark.max_waits`, by the fixtures `waits` and
`no_waits`, or for all tests by ``--waits`` and the option ``gapless_max_waits``.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gapless.integrations._pytest_summary import Seen
    from gapless.integrations._pytest_watch import Bound, Waits, Watch

_MARK = "max_waits"
_RACES = "no_races"
_FIXTURES = frozenset({"waits", "no_waits"})
_watch: pytest.StashKey[Watch] = pytest.StashKey()
_bound: pytest.StashKey[Bound] = pytest.StashKey()


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
    """The mark that counts: a parameter's before its function's, a function's before its class's."""
    own = [mark for mark in item.own_markers if mark.name == _MARK]
    return own[-1] if own else item.get_closest_marker(_MARK)


def _is_ours(item: pytest.Item, name: str) -> bool:
    """Whether a fixture is the plugin's: a suite may have one of the same name."""
    known = getattr(item, "_fixtureinfo", None)
    found = known.name2fixturedefs.get(name) if known is not None else None
    return found is not None and len(found) > 0 and found[-1].func.__module__ == __name__


def _asks(item: pytest.Item) -> bool:
    """Whether anything wants this test watched."""
    if _mark(item) is not None or item.get_closest_marker(_RACES) is not None:
        return True
    if any(_is_ours(item, name) for name in _FIXTURES.intersection(getattr(item, "fixturenames", ()))):
        return True
    return bool(item.config.getoption("--waits") or item.config.getini("gapless_max_waits"))


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, None]:
    """Put the device in place before the test's fixtures make anything on it."""
    reason = ""
    if _asks(item):
        from gapless.integrations import _pytest_watch

        try:
            races = item.get_closest_marker(_RACES) is not None
            item.stash[_bound] = _pytest_watch.bound(_mark(item), item.config, races)
            item.stash[_watch] = _pytest_watch.begin(item.config, races)
        except _pytest_watch.Refused as refused:
            reason = str(refused)
    outcome = yield
    if reason:
        outcome.force_exception(pytest.fail.Exception(reason, pytrace=False))


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    """Count what waits in the test itself; its fixtures may."""
    watch = item.stash.get(_watch, None)
    if watch is None:
        yield
        return
    watch.count_from_here()
    outcome = yield
    watch.done()
    if outcome.excinfo is None:
        reason = item.stash[_bound].exceeded(watch)
        if reason:
            outcome.force_exception(pytest.fail.Exception(reason, pytrace=False))


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Take the device away when the last fixture has let go of it."""
    yield
    watch = item.stash.get(_watch, None)
    if watch is not None:
        del item.stash[_watch]
        watch.end()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    """Let the report carry what was seen: with pytest-xdist it travels to the process that sums up."""
    outcome = yield
    watch = item.stash.get(_watch, None)
    if watch is not None and call.when == "call":
        outcome.get_result().gapless_waits = watch.seen()


class _Summary:
    """Gathers what the reports carry, and lists it at the end."""

    def __init__(self) -> None:
        self._tests: dict[str, Seen] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        seen = getattr(report, "gapless_waits", None)
        if seen is not None:
            self._tests[report.nodeid] = seen

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._tests:
            from gapless.integrations import _pytest_summary

            _pytest_summary.write(terminalreporter, self._tests)


@pytest.fixture
def waits(request: pytest.FixtureRequest) -> Waits:
    """What the host has waited for in this test so far: `waits.count`, `waits.session`, `waits.reset()`."""
    from gapless.integrations._pytest_watch import Waits

    return Waits(request.node.stash[_watch])


@pytest.fixture
def no_waits(request: pytest.FixtureRequest) -> Any:
    """The host may not wait: in the blocks ``with no_waits():``, or in the whole test if it has none.

    A block raises at the line that waits.
    """
    return request.node.stash[_bound].blocks()
