"""How many cores a process may use: its affinity, and the least of the control groups' quotas."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gapless import cores
from gapless.cores import cgroup_quota, usable_cores


def put(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("name", "text", "limit"),
    [
        ("cpu.max", "150000 100000\n", 1.5),
        ("cpu.max", "max 100000\n", -1),
        ("cpu.max", "nonsense", -1),
        ("cpu.max", "100000 0", -1),
        ("other", "", -1),
    ],
)
def test_the_quota_of_a_container_is_its_root(tmp_path: Path, name: str, text: str, limit: float) -> None:
    put(tmp_path, name, text)
    assert cgroup_quota(tmp_path, tmp_path / "none") == limit


@pytest.mark.parametrize(("micro", "limit"), [("250000", 2.5), ("-1", -1)])
def test_the_quota_of_a_container_in_the_first_version(tmp_path: Path, micro: str, limit: float) -> None:
    put(tmp_path, "cpu/cpu.cfs_quota_us", micro)
    put(tmp_path, "cpu/cpu.cfs_period_us", "100000")
    assert cgroup_quota(tmp_path, tmp_path / "none") == limit


def test_the_quota_is_the_least_of_all_groups_above(tmp_path: Path) -> None:
    groups, membership = tmp_path / "cgroup", tmp_path / "self"
    inner = groups / "a" / "b"
    inner.mkdir(parents=True)
    (groups / "a" / "cpu.max").write_text("150000 100000\n")
    (inner / "cpu.max").write_text("max 100000\n")
    membership.write_text("0::/a/b\n")
    assert cgroup_quota(groups, membership) == 1.5
    membership.write_text("")
    assert cgroup_quota(groups, membership) == -1


def test_the_quota_of_the_older_groups(tmp_path: Path) -> None:
    groups, membership = tmp_path / "cgroup", tmp_path / "self"
    folder = groups / "cpu,cpuacct" / "docker"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text("50000")
    (folder / "cpu.cfs_period_us").write_text("100000")
    membership.write_text("4:cpu,cpuacct:/docker\n3:memory:/docker\n")
    assert cgroup_quota(groups, membership) == 0.5
    (folder / "cpu.cfs_quota_us").write_text("-1")
    assert cgroup_quota(groups, membership) == -1


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("50000 100000", 1),
        ("150000 100000", 2),
        ("250000 100000", 3),
        ("900000 100000", 4),
        ("max 100000", 4),
    ],
)
def test_part_of_a_core_counts_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, count: int
) -> None:
    put(tmp_path, "cpu.max", text)
    monkeypatch.setattr(cores, "allowed_cores", lambda: 4)
    assert usable_cores(tmp_path, tmp_path / "none") == count


def test_no_more_than_the_machine_has() -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
