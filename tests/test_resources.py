"""Memory, cores and load of the host, from the system's files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest

from dfmp2.host import resources


@pytest.fixture
def system_files(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Contents of the system's files in the test; files not named do not exist."""
    content: dict[str, str] = {}
    monkeypatch.setattr(resources, "_words", lambda file: content.get(file, "").split())
    return content


@pytest.mark.parametrize(
    ("folder", "limit", "usage", "cached"),
    [
        ("", "memory.max", "memory.current", "inactive_file"),
        ("/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
    ids=["version 2", "version 1"],
)
def test_memory_is_what_the_control_group_leaves(
    folder: str, limit: str, usage: str, cached: str, system_files: dict[str, str]
) -> None:
    """The free memory of the machine, or of the group if that is less; kB are 1024 bytes."""
    folder = f"/sys/fs/cgroup{folder}"
    limit, usage = f"{folder}/{limit}", f"{folder}/{usage}"
    system_files["/proc/meminfo"] = "MemTotal: 900 kB MemAvailable: 500 kB"
    assert resources.available_memory() == 500 * 1024
    system_files[limit] = "max"
    system_files[usage] = "400000"
    assert resources.available_memory() == 500 * 1024
    system_files[limit] = "600000"
    assert resources.available_memory() == 200_000
    system_files[usage] = "700000"
    assert resources.available_memory() == 0
    system_files["/proc/self/status"] = "VmHWM: 90 kB VmRSS: 70 kB"
    assert resources.resident_memory() == 70 * 1024
    assert resources.peak_resident_memory() == 90 * 1024
    system_files[usage] = "500000"
    assert resources.usable_memory() == 70 * 1024 + 90_000
    # Of a job of Slurm, which is no container, beside what the system has cached for it
    system_files["/proc/self/cgroup"] = "3:cpu,memory:/slurm/job_7/step_0 0::/slurm/job_7/step_0"
    system_files[limit.replace(folder, f"{folder}/slurm/job_7")] = "90000"
    system_files[usage.replace(folder, f"{folder}/slurm/job_7")] = "60000"
    assert resources.available_memory() == 30_000
    system_files[f"{folder}/slurm/job_7/memory.stat"] = f"anon 7 {cached} 20000 active_file 9"
    assert resources.available_memory() == 50_000
    system_files["/proc/12/status"] = "VmHWM: 3 kB"
    assert resources.peak_of_process(12) == 3 * 1024
    assert resources.peak_of_process(13) is None


def test_cores_are_those_of_the_quota(
    system_files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole cores, at least one; a requested number of threads takes precedence."""
    monkeypatch.setattr(resources.os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for quota, cores in (
        ("", 6),
        ("max 100000", 6),
        ("350000 100000", 3),
        ("50000 100000", 1),
        ("900000 100000", 6),
    ):
        system_files["/sys/fs/cgroup/cpu.max"] = quota
        assert resources.cores() == resources.usable_cores() == cores
    for asked, threads in (("2", 2), ("3,4", 3), ("0", 6), ("many", 6), ("9", 9)):
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
        assert resources.usable_cores() == threads
    # Of a job of Slurm, in version 2 and version 1
    system_files["/proc/self/cgroup"] = "3:cpu,cpuacct:/slurm/job_7/step_0 0::/slurm/job_7/step_0"
    system_files["/sys/fs/cgroup/slurm/job_7/cpu.max"] = "450000 100000"
    assert resources.cores() == 4
    system_files["/sys/fs/cgroup/cpu/slurm/job_7/cpu.cfs_quota_us"] = "100000"
    system_files["/sys/fs/cgroup/cpu/slurm/job_7/cpu.cfs_period_us"] = "50000"
    assert resources.cores() == 2


def test_others_are_busy_beyond_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([(10.0, 100.0, 5.0), (14.0, 112.0, 9.0), (14.0, 102.0, 9.0)])
    monkeypatch.setattr(resources.Others, "_now", staticmethod(lambda: next(clock)))
    others = resources.Others()
    assert others.used() == (12 - 4) / 4
    assert others.used() == 0.0  # rounding of the system's counters


def test_busy_seconds_are_all_but_idle_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among user, nice, system, idle, iowait, irq, softirq and steal; user includes guests."""
    lines = "cpu  10 20 30 400 50 6 7 8 9 9\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
    for text, seconds in ((lines, 0.81), ("cpu  many", 0.0)):
        file = SimpleNamespace(read_text=lambda encoding, text=text: text)
        monkeypatch.setattr(resources, "Path", lambda name, file=file: file)
        monkeypatch.setattr(resources.os, "sysconf", lambda name: 100)
        assert resources.busy_seconds() == seconds


@pytest.mark.parametrize(("platform", "peak"), [("linux", 5 * 1024), ("darwin", 5)])
@pytest.mark.parametrize(("error", "alive"), [(ProcessLookupError, False), (PermissionError, True)])
def test_what_is_asked_of_the_system(
    platform: str,
    peak: int,
    error: type[OSError],
    alive: bool,
    system_files: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """KB (bytes on a Mac) of the largest size, space for this user, a process of somebody else, times
    with those of child processes; Linux restarts the peak for a 5 (proc(5))."""
    monkeypatch.setattr(resources.sys, "platform", platform)
    monkeypatch.setattr(resources.resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=5))
    assert resources.peak_resident_memory() == resources.resident_memory() == peak
    disk = SimpleNamespace(f_bavail=3, f_bfree=5, f_frsize=7, f_bsize=11)
    monkeypatch.setattr(resources.os, "statvfs", lambda folder: disk)
    assert resources.free_disk(Path()) == 21
    monkeypatch.setattr(resources.os, "kill", Mock(side_effect=error))
    assert resources.is_alive(7) == alive
    monkeypatch.setattr(resources.os, "times", lambda: (1.0, 2.0, 4.0, 8.0, 99.0))
    assert resources.Others._now()[2] == 15.0
    monkeypatch.setattr(resources, "Path", file := Mock())
    resources.restart_peak()
    assert file.mock_calls == [call("/proc/self/clear_refs"), call().write_text("5")]
