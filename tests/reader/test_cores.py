"""Tests the number of cores that a process may use."""

import os
import pathlib

import pytest

from tf_input import cores

GROUPS = {
    "no quota": ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, []),
    "container": ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "250000 100000"}, [2.5]),
    "nested slice": (
        {"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "max 100000", "sys/fs/cgroup/a/cpu.max": "50000 100000"},
        [0.5],
    ),
    "version 1": (
        {
            "proc/self/cgroup": "5:memory:/x\n4:cpu,cpuacct:/docker/1",
            "sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us": "300000\n",
            "sys/fs/cgroup/cpu/docker/1/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
        [3.0],
    ),
    "invalid quota": ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "?"}, []),
    "no control groups": ({}, []),
}


@pytest.mark.parametrize("case", GROUPS)
def test_reads_quotas_of_control_groups(tmp_path, case):
    files, expected = GROUPS[case]
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert list(cores.quotas(pathlib.Path(tmp_path))) == expected


@pytest.mark.parametrize("quotas, expected", [([], 4), ([2.5], 3), ([0.2], 1), ([64.0], 4), ([3.0, 1.0], 1)])
def test_num_cores_is_the_smallest_limit(monkeypatch, quotas, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(4)))
    monkeypatch.setattr(cores, "quotas", lambda: iter(quotas))
    assert cores.num_cores() == expected
