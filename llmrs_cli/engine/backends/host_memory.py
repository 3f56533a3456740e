"""How much host memory could still be taken, for the backends that compute there.

On Linux the kernel's own estimate, and no more than a container leaves; elsewhere what sysconf says.
"""

from __future__ import annotations

import os
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def available_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int:
    """Bytes free for a new allocation, page cache that can be dropped included."""
    free = _meminfo_available(meminfo)
    if free is None:
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    left = _cgroup_left(cgroup)
    return free if left is None else max(0, min(free, left))


def _meminfo_available(path: Path) -> int | None:
    """The line `MemAvailable:  123 kB`, or None where there is none."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    found = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    kilobytes = next(found, None)
    return None if kilobytes is None else int(kilobytes) * 1024


def _cgroup_left(folder: Path) -> int | None:
    """Limit minus use of a version 2 control group, or None where nothing limits it."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    return int(limit) - used + int(stat.get("inactive_file", 0))
