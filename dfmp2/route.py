"""Where B is made of the integrals: on the host in float64, or on a Trainium core in float32.

    host     (ia|Q) in the orbitals, fit of nocc nvir columns, B goes up
    device   fit of nao (nao + 1) / 2 columns, A_P goes up, K1 and K2;  B of the certificate's orbitals on the host

Either way the metric is applied in float64 before anything is rounded. The device's way costs more on the host unless
few of the occupied orbitals are in the certificate's sample; so it is taken when it is predicted to be faster, or asked
for. Its numbers are predicted from documented costs; none was measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from dfmp2.backends.nki.costs.shapes import Shape
from dfmp2.errors import ResourceError, UnsupportedByBackend
from dfmp2.forecast import Rates
from dfmp2.memory import FLOAT32, FLOAT64, SOLVE_BYTES
from dfmp2.mp2.certificate import FRACTION, LEAST_SAMPLED
from dfmp2.record import Timings
from dfmp2.units import format_bytes
from dfmp2.workload import Workload

LEAST_OVERLAP = 1e-3  # of the basis; 4e-4 (benzene, cc-pVDZ) costs 7e-8 Eh by the certificate, 2e-6 (aug-) 4e-7 Eh
TILE = 128  # rows of a tile on the device, and fitting functions that go up together


@dataclass(frozen=True, slots=True)
class Cost:
    """Predicted seconds: fit and transformation on the host, K1 and K2 with their dispatch, transfers."""

    fit: float
    transform: float
    device: float
    link: float

    @property
    def total(self) -> float:
        """All of it; nothing overlaps."""
        return self.fit + self.transform + self.device + self.link


@dataclass(frozen=True, slots=True)
class Route:
    """The choice.

    Attributes
    ----------
    place : "host" or "device"
    reason : why
    chip : "trn1" or "trn2" that the costs are for, "" where there are none
    host, device : predicted costs, None where nobody asked or it cannot run
    held : bytes the host holds on the device's way
    """

    place: str
    reason: str
    chip: str = ""
    host: Cost | None = None
    device: Cost | None = None
    held: int = 0

    @property
    def on_device(self) -> bool:
        """Whether the device transforms."""
        return self.place == "device"

    def retimed(self, timings: Timings) -> Timings:
        """Predicted times of a run that goes this way."""
        if not self.on_device or self.device is None:
            return timings
        transform = self.device.total - self.device.fit
        change = self.device.fit - timings.fit + transform - timings.transform
        return replace(timings, fit=self.device.fit, transform=transform, total=timings.total + change)

    def describe(self) -> dict[str, str]:
        """For the record of a backend that could have done either."""
        return {"transformation": f"{self.place}: {self.reason}"} if self.chip else {}


ON_HOST = Route("host", "the backend takes B from the host")


def choose(asked: str, chip: str, spins: tuple[Shape, ...], work: Workload, rates: Rates, room: int) -> Route:
    """The way a run goes.

    Parameters
    ----------
    asked : "auto", "host" or "device"
    chip : that makes B itself, "" where the backend has none
    spins : as the kernels see them
    room : bytes the host may hold

    Raises
    ------
    UnsupportedByBackend : the device was asked for, and cannot
    ResourceError : the device was asked for, and the host's part does not fit into memory
    """
    if not chip or not spins:
        if asked == "device":
            why = "this backend takes B from the host" if not chip else "there is nothing to correlate"
            raise UnsupportedByBackend(f"--transform device: {why}; use an nki lane on one core, or --transform host")
        return replace(ON_HOST, chip=chip)
    if asked == "host":
        return Route("host", "asked for with --transform host", chip)
    host, device, obstacle = costs(work.nao, spins, chip, rates)
    held = host_bytes(work)
    short = held > room
    if asked == "device":
        if obstacle:
            raise UnsupportedByBackend(f"--transform device: {obstacle}; use --transform host")
        if short:
            raise ResourceError(
                f"--transform device holds {format_bytes(held)} of fitted integrals on the host, where "
                f"{format_bytes(room)} are left: allow {format_bytes(held - room)} more with --memory, or use "
                "--transform host"
            )
        return Route("device", "asked for with --transform device", chip, host, device, held)
    found = faster(Route("host", obstacle, chip, host, device, held))
    if found.on_device and short:
        return replace(found, place="host", reason=f"{found.reason}, but {format_bytes(held)} do not fit into memory")
    return found


def where_sound(route: Route, smallest: float) -> Route:
    """The same choice, but the host where the basis would amplify what float32 rounds.

    Parameters
    ----------
    smallest : eigenvalue of the overlap of the basis functions
    """
    if smallest >= LEAST_OVERLAP:
        return route
    told = f"{route.reason}, but the overlap of the basis has an eigenvalue of {smallest:.0e}, too small for float32"
    return replace(route, place="host", reason=told)


def faster(route: Route) -> Route:
    """The way that is predicted to be faster; the host's where the device cannot."""
    if route.host is None or route.device is None:
        return route
    told = f"predicted {route.device.total:.3g} s on the device ({route.chip}), {route.host.total:.3g} s on the host"
    return replace(route, place="device" if route.device.total < route.host.total else "host", reason=told)


def weighed(route: Route, nao: int, spins: tuple[Shape, ...], rates: Rates) -> Route:
    """The same choice with the predicted costs of both ways; on trn1 where the backend is none of the lanes."""
    if route.host is not None or not spins:
        return route
    chip = route.chip or "trn1"
    host, device, obstacle = costs(nao, spins, chip, rates)
    return replace(route, chip=chip, host=host, device=device, reason=obstacle or route.reason)


def costs(nao: int, spins: tuple[Shape, ...], chip: str, rates: Rates) -> tuple[Cost, Cost | None, str]:
    """Predicted costs on the host's and on the device's way, and why the latter cannot be gone, "" if it can."""
    from dfmp2.backends.nki.costs import transformation  # the cost model is loaded only where it is asked for

    naux = spins[0].naux
    made = [2 * naux * nao * (nao + s.nvir) for s in spins]  # operations per occupied orbital
    host = Cost(
        naux**2 * sum(s.nocc * s.nvir for s in spins) / rates.solve,
        sum(n * s.nocc for n, s in zip(made, spins, strict=True)) / rates.transform,
        0.0,
        transformation.upload_seconds(spins),
    )
    found = transformation.predict(spins, nao, chip)
    if found.obstacle:
        return host, None, f"K1 and K2 cannot run on {chip}: {found.obstacle}"
    sampled = zip(made, sampled_orbitals(spins), strict=True)
    device = Cost(
        naux**2 * nao * (nao + 1) / 2 / rates.solve,
        sum(n * count for n, count in sampled) / rates.transform,
        found.device + found.dispatch,
        found.link,
    )
    return host, device, ""


def sampled_orbitals(spins: tuple[Shape, ...]) -> list[float]:
    """Expected number of occupied orbitals of each spin in the certificate's sample."""
    draws = [2 * _sampled(shape.pairs) for shape in spins]
    if len(spins) == 2:
        draws = [count + _sampled(spins[0].nocc * spins[1].nocc) for count in draws]
    return [s.nocc * (1 - (1 - 1 / s.nocc) ** n) for s, n in zip(spins, draws, strict=True)]


def _sampled(pairs: int) -> int:
    return min(pairs, max(LEAST_SAMPLED, ceil(FRACTION * pairs)))


def host_bytes(work: Workload) -> int:
    """Bytes the host holds: fitted integrals, and beside them the metric, a batch that goes up, or B of the sample."""
    tiles, groups = -(-work.nao // TILE), -(-work.naux // TILE)
    integrals = work.naux * work.pairs_of_functions * FLOAT64
    metric = 2 * work.naux**2 * FLOAT64 + work.block_functions * work.pairs_of_functions * FLOAT64
    batch = TILE * FLOAT64 * (work.nao**2 + (tiles * TILE) ** 2 * 3 // 2)
    halves = sum(groups * tiles * TILE**2 * (s.nocc + TILE) * FLOAT32 for s in work.spins)
    b = work.elements * work.naux * FLOAT64
    frontier = 2 * work.frontier_elements * work.naux * FLOAT64
    return integrals + max(metric + 2 * SOLVE_BYTES, batch + halves + b // 2, 2 * b, frontier)
