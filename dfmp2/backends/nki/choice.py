"""Which lane a run takes: the variables DFMP2_REQUIRE_NKI and DFMP2_USE_SIMULATOR, and what `auto` does on Trainium.

Read when a run starts, never at import. `auto` on a Neuron host decides once, for the whole pair step, from predicted
times: device, dispatch, transfers, and compilation of what is not in the cache, against this host's own rates. Nothing
of the device's side was measured. Toolchain and cost model are imported only where a Neuron lane is in question: every
run passes through here.
"""

from __future__ import annotations

from collections.abc import Mapping

from dfmp2.backends.nki import environment
from dfmp2.backends.nki.costs.shapes import Shape
from dfmp2.backends.nki.environment import HERE, ON, Host
from dfmp2.errors import BackendUnavailable, InputError

COMPILE_SECONDS = 30.0  # per program; public reports name 10 s for a tiny kernel and 27 s for 88,000 statements


def flag(name: str, environ: Mapping[str, str]) -> bool:
    """Value of a yes-or-no variable.

    Raises
    ------
    InputError : it is neither
    """
    value = ON.get(environ.get(name, "").strip().lower())
    if value is None:
        raise InputError(f"{name}={environ[name]!r}: expected 1 or 0")
    return value


def named_lane(name: str, host: Host = HERE) -> tuple[str, str]:
    """The backend that a name stands for under the variables, and a note for the reason ("" if they change nothing).

    Raises
    ------
    BackendUnavailable : DFMP2_REQUIRE_NKI=1 and another backend was asked for
    """
    required, simulated = flag("DFMP2_REQUIRE_NKI", host.environ), flag("DFMP2_USE_SIMULATOR", host.environ)
    notes = []
    if required and name == "auto":
        name = "nki"
        notes.append("DFMP2_REQUIRE_NKI=1")
        from dfmp2.backends.nki import toolchain

        if not simulated and toolchain.refusal("nki", host) and not toolchain.refusal("nki-xla", host):
            name = "nki-xla"
    if required and not name.startswith("nki"):
        raise BackendUnavailable(
            f"DFMP2_REQUIRE_NKI=1 allows only the nki lanes, and --backend {name} was asked for: choose --backend nki, "
            "or unset the variable"
        )
    if simulated and name == "nki":
        name = "nki-simulator"
        notes.append("DFMP2_USE_SIMULATOR=1 takes the simulator in place of nki")
    return name, ", ".join(notes)


def weigh(spins: tuple[Shape, ...], host_seconds: float, measured: bool, host: Host = HERE) -> tuple[str | None, str]:
    """For `auto` on a host with Neuron devices: the lane to take, None for the host, and the reason.

    Parameters
    ----------
    host_seconds : predicted time of the pair step on the host, s; measured : from rates measured on this host
    """
    from dfmp2.backends.nki import toolchain
    from dfmp2.backends.nki.costs import prediction
    from dfmp2.backends.nki.costs.dispatch import ROUND_TRIP

    target = toolchain.device_target(host)
    problems = {lane: toolchain.refusal(lane, host) for lane in ("nki", "nki-xla")}
    lane = next((name for name, why in problems.items() if why is None), None)
    if target is None or lane is None:
        return None, f"auto: a Neuron device is present, but {'; '.join(f'{k}: {v}' for k, v in problems.items() if v)}"
    cores = environment.cores(host.environ.get("NEURON_RT_VISIBLE_CORES") or "0") or (0,)
    found = next(iter(prediction.predict(spins, chips=(target,), cores=len(cores))), None)
    if found is None or found.obstacle:
        return None, f"auto: a Neuron device is present, but {found.obstacle if found else 'there is nothing to do'}"
    missing = missing_programs(spins, target, host)
    compiling = missing * COMPILE_SECONDS
    dispatch = found.calls * ROUND_TRIP / 1e3 / len(cores)  # every call is waited for
    device = found.device + dispatch + found.link + compiling
    told = (
        f"predicted {device:.2f} s on {len(cores)} {target} core{'s' * (len(cores) > 1)} (device {found.device:.3f}, "
        f"dispatch {dispatch:.3f}, transfers {found.link:.3f}, compiling {missing} programs {compiling:.0f}) "
        f"against {host_seconds:.2f} s on the host ({'rates measured here' if measured else 'built-in rates'})"
    )
    return (lane, f"auto: {told}") if device < host_seconds else (None, f"auto: the host is faster: {told}")


def missing_programs(spins: tuple[Shape, ...], target: str, host: Host = HERE) -> int:
    """Programs that these shapes need and that are not compiled yet."""
    from dfmp2.backends.nki import compiler
    from dfmp2.backends.nki.neff_cache import NeffCache
    from dfmp2.backends.nki.programs import pair_programs

    cache, versions = NeffCache(environment.cache_folder(host)), compiler.compiler_versions(host)
    return sum(cache.find(program, target, versions) is None for program in pair_programs(spins, target))
