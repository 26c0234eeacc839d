"""Many files at once: order, failures, killed processes, Ctrl-C, Ray."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import finish, start

from gapless.commands._many import analyze_many
from gapless.errors import UnreadableInput, UsageError
from gapless.model import Profile

sys.path.insert(0, str(Path(__file__).parent))  # the other processes find it by the same path
import reading

sys.path.pop(0)


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., list[str]]:
    def files(*texts: str) -> list[str]:
        paths = [tmp_path / f"{number}.json" for number in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
        return [str(path) for path in paths]

    return files


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes can import what the tests give them."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def spans(results: list[Any]) -> list[Any]:
    return [result.span if isinstance(result, Profile) else str(result) for result in results]


def test_one_file_is_read_in_this_process(files: Callable[..., list[str]]) -> None:
    (profile,) = analyze_many(files("7"), reading.read)
    assert isinstance(profile, Profile)
    assert (profile.span, profile.rank) == (7, os.getpid())


def test_nothing_to_read(files: Callable[..., list[str]]) -> None:
    assert analyze_many([], reading.read) == []
    assert analyze_many([], reading.read, jobs=4) == []


def test_a_bad_file_costs_its_own_place_only_in_this_process(files: Callable[..., list[str]]) -> None:
    paths = files("7", "bad", "8")
    analyses = analyze_many(paths, reading.read, jobs=1)
    assert spans(analyses) == [7, f"{paths[1]} is no trace", 8]


@pytest.mark.usefixtures("elsewhere")
def test_results_come_in_the_order_of_the_files_from_other_processes(
    files: Callable[..., list[str]],
) -> None:
    paths = files("1", "bad", "2", "huge", "3")
    progress_calls: list[tuple[int, int]] = []
    analyses = analyze_many(
        paths, reading.read, jobs=2, progress=lambda done, of: progress_calls.append((done, of))
    )
    assert spans(analyses)[::2] == [1, 2, 3]
    assert str(analyses[1]) == f"{paths[1]} is no trace"
    assert str(analyses[3]).startswith(f"{paths[3]} does not fit in this machine's memory")
    assert [report.path for report in analyses if isinstance(report, Profile)] == paths[::2]
    assert os.getpid() not in {profile.rank for profile in analyses if isinstance(profile, Profile)}
    assert progress_calls == [(number, 5) for number in range(1, 6)]


@pytest.mark.usefixtures("elsewhere")
def test_a_process_that_is_killed_costs_its_file_only(files: Callable[..., list[str]]) -> None:
    paths = files("1", "killed", "2", "3")
    progress_calls: list[int] = []
    analyses = analyze_many(
        paths, reading.read, jobs=2, progress=lambda done, of: progress_calls.append(done)
    )
    assert [spans(analyses)[at] for at in (0, 2, 3)] == [1, 2, 3]
    assert isinstance(analyses[1], UnreadableInput)
    assert f"the process that read {paths[1]} was killed" in str(analyses[1])
    assert progress_calls == [1, 2, 3, 4]


@pytest.mark.usefixtures("elsewhere")
def test_files_of_a_killed_process_are_retried_alone(
    files: Callable[..., list[str]],
) -> None:
    paths = files("1", "killed", "1")
    assert spans(analyze_many(paths, reading.killed_among_others, jobs=2)) == [1, 1, 1]


@pytest.mark.usefixtures("elsewhere")
def test_a_defect_is_not_hidden(files: Callable[..., list[str]]) -> None:
    with pytest.raises(ZeroDivisionError, match="a defect"):
        analyze_many(files("1", "defect"), reading.read, jobs=2)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
@pytest.mark.parametrize("whole_group", [True, False], ids=["terminal", "kill"])
def test_ctrl_c_ends_all_of_it_at_once(
    files: Callable[..., list[str]], tmp_path: Path, whole_group: bool
) -> None:
    paths = files("", "", "")
    script = tmp_path / "main.py"
    script.write_text(
        f"import os, sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nimport reading\n"
        "from gapless.commands._many import analyze_many\n"
        "if __name__ == '__main__':\n"
        "    os.setpgid(0, 0)\n"
        f"    try:\n        analyze_many({paths!r}, reading.hang, jobs=2)\n"
        "    except KeyboardInterrupt:\n        print('interrupted')\n"
    )
    process = start(str(script), cwd=tmp_path)
    begun = [Path(path).with_suffix(".begun") for path in paths[:2]]
    until = time.monotonic() + 60
    while not all(mark.exists() and mark.read_text() for mark in begun):
        assert process.poll() is None, finish(process).stderr
        assert time.monotonic() < until
        os.sched_yield()
    children = [int(mark.read_text()) for mark in begun]
    if whole_group:
        os.killpg(process.pid, signal.SIGINT)
    else:
        os.kill(process.pid, signal.SIGINT)
    ended = finish(process, timeout=30)
    assert (ended.stdout, ended.returncode) == ("interrupted\n", 0), ended.stderr
    assert not Path(paths[2]).with_suffix(".begun").exists()
    for child in children:
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)


class FakeRay:
    """What is used of Ray: tasks run when they are asked for, the last first."""

    class exceptions:  # noqa: N801
        class RayError(Exception):
            pass

    def __init__(self, running: bool = False, broken: str = "") -> None:
        self.running = running
        self.broken = broken
        self.calls: list[str] = []
        self.cancelled: list[object] = []

    def is_initialized(self) -> bool:
        return self.running

    def init(self, **options: Any) -> None:
        self.calls.append("init")
        if self.broken:
            raise ConnectionError(self.broken)

    def shutdown(self) -> None:
        self.calls.append("shutdown")

    def remote(self, *, max_retries: int) -> Any:
        assert max_retries == 1
        return lambda function: SimpleNamespace(remote=lambda *args: lambda: function(*args))

    def wait(self, references: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        return references[-num_returns:], references[:-num_returns]

    def get(self, reference: Any) -> Any:
        try:
            return reference()
        except ZeroDivisionError as error:
            raise self.exceptions.RayError(
                f"a long traceback\n  of lines\nZeroDivisionError: {error}\n"
            ) from None

    def cancel(self, reference: object, *, force: bool) -> None:
        assert force
        self.cancelled.append(reference)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)  # type: ignore[arg-type]
    return fake


class TestRay:
    def test_each_file_is_a_task(self, files: Callable[..., list[str]], ray: FakeRay) -> None:
        paths = files("1", "bad", "2", "defect")
        progress_calls: list[int] = []
        analyses = analyze_many(
            paths, reading.read, on="ray", progress=lambda done, of: progress_calls.append(done)
        )
        assert spans(analyses) == [
            1,
            f"{paths[1]} is no trace",
            2,
            f"Ray could not read {paths[3]}: ZeroDivisionError: a defect",
        ]
        assert [report.path for report in analyses if isinstance(report, Profile)] == [paths[0], paths[2]]
        assert progress_calls == [1, 2, 3, 4]
        assert ray.calls == ["init", "shutdown"]

    def test_a_session_that_runs_is_used_and_left_running(
        self, files: Callable[..., list[str]], ray: FakeRay
    ) -> None:
        ray.running = True
        assert spans(analyze_many(files("1"), reading.read, on="ray")) == [1]
        assert ray.calls == []

    def test_an_interrupt_cancels_what_runs(self, files: Callable[..., list[str]], ray: FakeRay) -> None:
        def stop(done: int, of: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            analyze_many(files("1", "2", "3"), reading.read, on="ray", progress=stop)
        assert len(ray.cancelled) == 2
        assert ray.calls == ["init", "shutdown"]

    def test_without_ray_one_line_says_how_to_get_it(
        self, files: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "ray", None)
        with pytest.raises(UsageError, match=r"^--on ray needs Ray, .*: pip install ray$"):
            analyze_many(files("1"), reading.read, on="ray")

    def test_a_cluster_that_does_not_answer_is_said(
        self, files: Callable[..., list[str]], ray: FakeRay
    ) -> None:
        ray.broken = "no node\nat 10.0.0.1"
        with pytest.raises(UsageError, match=r"^Ray failed to start: at 10\.0\.0\.1$"):
            analyze_many(files("1"), reading.read, on="ray")
        assert ray.calls == ["init"]
