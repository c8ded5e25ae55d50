"""Start one command and write what it took: `python -I launcher.py REPORT.json COMMAND [ARGUMENT ...]`.

A program of its own, of the standard library alone: the kernel hands a process' peak memory on to what it
starts, so a peak measured from a process with NumPy loaded would never be below NumPy's. `foreign` are
the processor seconds that everything else on the machine used meanwhile (and that a host took away).
"""

from __future__ import annotations

import json
import os
import sys
import time


def busy_seconds() -> float:
    """Processor seconds of the whole machine spent on anything but idling; 0 where the system does not say."""
    try:
        with open("/proc/stat", encoding="ascii") as handle:
            fields = [int(word) for word in handle.readline().split()[1:]]
    except (OSError, ValueError):
        return 0.0
    # user, nice, system, idle, iowait, irq, softirq, steal; what follows is counted in the first two
    return (sum(fields[:8]) - sum(fields[3:5])) / os.sysconf("SC_CLK_TCK")


def main(report: str, command: list[str]) -> None:
    """Run the command, wait for it and write the report."""
    before, start = busy_seconds(), time.perf_counter()
    process = os.posix_spawnp(command[0], command, os.environ)
    _, status, usage = os.wait4(process, 0)
    wall, busy = time.perf_counter() - start, busy_seconds() - before
    cpu = usage.ru_utime + usage.ru_stime
    facts = {
        "wall": wall,
        "cpu": cpu,
        "foreign": max(0.0, busy - cpu),
        "peak": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        "code": os.waitstatus_to_exitcode(status),
    }
    with open(report, "w", encoding="ascii") as handle:
        json.dump(facts, handle)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
