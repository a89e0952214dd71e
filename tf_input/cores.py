"""Determines the number of CPU cores that this process may use."""

import math
import os
import pathlib
from typing import Iterator


def num_cores() -> int:
    """Returns the number of CPU cores that the scheduler and the container's cgroup quotas allow, at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min([allowed, *quotas()])))


def quotas(root: pathlib.Path = pathlib.Path("/")) -> Iterator[float]:
    """Yields the CPU quotas of this process's cgroups and of all parent cgroups, in cores.

    The formats are documented in https://docs.kernel.org/admin-guide/cgroup-v2.html (version 2) and
    https://docs.kernel.org/scheduler/sched-bwc.html (version 1).

    Args:
        root: The root of the file system. Default: "/".
    """
    mounted = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not on Linux
        return
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = mounted / "cpu" if controllers else mounted
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(top):
                yield from _quota(folder)


def _quota(folder: pathlib.Path) -> Iterator[float]:
    """Yields the CPU limit of a cgroup in cores. Yields nothing if the cgroup has no limit."""
    try:
        if (path := folder / "cpu.max").exists():
            quota, period = path.read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        if quota.strip() not in ("max", "-1"):
            yield int(quota) / int(period)
    except (OSError, ValueError):
        return
