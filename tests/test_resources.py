"""Memory, cores and load of the host, from the system's files."""

from __future__ import annotations

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
