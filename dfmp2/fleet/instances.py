"""The machines a calculation might run on, described by the user in a TOML or JSON file: prices and rates with dates.

    currency = "USD"
    [storage]                                  shared by all instances; optional
    write_gb_per_s = 1.0    read_gb_per_s = 2.0    date = 2026-11-21
    [[instance]]
    name = "large"          vcpus = 16         memory = "64GB"
    price_per_hour = 0.50   price_date = 2026-11-21   price_source = "where it was found"
    rate_factor = 1.2       rates_date = 2026-11-21      one of its cores to one of this host's
    [instance.rates]                           instead: absolute rates of the whole instance (dfmp2.forecast.Rates)
    pairs_mixed = 1.5e12 ...

dfmp2 knows no prices and looks none up.
"""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import date
from pathlib import Path
from typing import Any

from dfmp2.backends.nki.costs.chips import CHIPS
from dfmp2.errors import InputError
from dfmp2.forecast import Rates
from dfmp2.io.text_file import read_text
from dfmp2.scratch.speed import DiskRates
from dfmp2.units import parse_bytes

MAX_BYTES = 10**6
MOST_INSTANCES = 100
GIGA = 1e9
RATES = tuple(one.name for one in fields(Rates))
NUMBER, WHOLE, TEXT, DAY, SIZE, TABLE = "a number", "a whole number", "text in quotes", "a date", "a size", "a table"
# Key -> (kind, required, least).
KEYS: dict[str, tuple[str, bool, float]] = {
    "name": (TEXT, True, 0),
    "vcpus": (WHOLE, True, 1),
    "cores": (WHOLE, False, 1),
    "memory": (SIZE, True, 1),
    "price_per_hour": (NUMBER, True, 0),
    "price_date": (DAY, True, 0),
    "price_source": (TEXT, True, 0),
    "rate_factor": (NUMBER, False, 1e-6),
    "rates": (TABLE, False, 0),
    "rates_date": (DAY, True, 0),
    "boot_seconds": (NUMBER, False, 0),
    "workers": (WHOLE, False, 1),
    "ranks": (WHOLE, False, 1),
    "spot_interruptions_per_hour": (NUMBER, False, 0),
    "network_gb_per_s": (NUMBER, False, 1e-6),
    "scratch_write_gb_per_s": (NUMBER, False, 1e-6),
    "scratch_read_gb_per_s": (NUMBER, False, 1e-6),
    "accelerator": (TEXT, False, 0),
    "accelerators": (WHOLE, False, 1),
}
STORAGE: dict[str, tuple[str, bool, float]] = {
    "write_gb_per_s": (NUMBER, True, 1e-6),
    "read_gb_per_s": (NUMBER, True, 1e-6),
    "date": (DAY, True, 0),
}


@dataclass(frozen=True, slots=True)
class Instance:
    """One kind of machine.

    Attributes
    ----------
    name, vcpus : as the provider calls it; cores : that dfmp2 puts to use, one thread each
    memory : bytes
    price, price_date, price_source : per hour (None for none), and where and when that was so
    factor : speed of a core relative to one of this host; rates : absolute ones of the whole instance, or None
    rates_date : when either was found
    boot : s from the request to the first item, paid for
    workers : processes of `batch run`; ranks : of one molecule, each with an equal part of the cores
    interruptions : of one Spot instance per hour, 0 where it is never taken away
    network : bytes per second between it and the storage
    scratch : speed of its scratch folder, None for this host's
    accelerator, accelerators : Trainium chip and number of its cores, "" and 0 for none
    """

    name: str
    vcpus: int
    cores: int
    memory: int
    price: float | None
    price_date: str
    price_source: str
    rates_date: str
    factor: float = 1.0
    rates: Mapping[str, float] | None = None
    boot: float = 0.0
    workers: int = 1
    ranks: int = 1
    interruptions: float = 0.0
    network: float = math.inf
    scratch: DiskRates | None = None
    accelerator: str = ""
    accelerators: int = 0


@dataclass(frozen=True, slots=True)
class Fleet:
    """What the file says; `storage` is the speed of what all instances share, None where it does not say."""

    file: str
    currency: str
    instances: tuple[Instance, ...] = field(default=())
    storage: DiskRates | None = None


def read_fleet(path: str) -> Fleet:
    """The machines a file describes.

    Raises
    ------
    InputError : naming file, instance and key
    """
    file, text = read_text(path, MAX_BYTES, f"more than {MAX_BYTES // 10**6} MB", "a TOML or JSON file")
    try:
        table = json.loads(text) if Path(path).suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not {'JSON' if Path(path).suffix == '.json' else 'TOML'} ({error})", file=file) from error
    if not isinstance(table, dict) or not isinstance(table.get("currency"), str):
        raise InputError('no currency: add currency = "USD", or what the prices are in', file=file)
    _require_known(table, ("currency", "storage", "instance"), file)
    given = table.get("instance")
    if not isinstance(given, list) or not given or len(given) > MOST_INSTANCES:
        raise InputError(f"expected 1 to {MOST_INSTANCES} tables [[instance]]", file=file)
    instances = tuple(_instance(one, f"{file}, instance {number}") for number, one in enumerate(given, start=1))
    names = [one.name for one in instances]
    if len(set(names)) < len(names):
        raise InputError("two instances have the same name: give each its own", file=file)
    storage = table.get("storage")
    return Fleet(file, table["currency"], instances, None if storage is None else _storage(storage, file))


def _instance(table: Any, where: str) -> Instance:
    values = _values(table, KEYS, where)
    where = f"{where} ({values['name'][:60]})"
    if ("rates" in values) == ("rate_factor" in values):
        raise InputError(f"{where}: give either rate_factor, to one core of this host, or a table rates, not both")
    if ("accelerator" in values) != ("accelerators" in values):
        raise InputError(f"{where}: accelerator (a chip) and accelerators (a number of its cores) belong together")
    if values.get("accelerator", "") not in ("", *CHIPS):
        raise InputError(f"{where}: accelerator {values['accelerator']!r}: times are known for {', '.join(CHIPS)} only")
    ways = [values.get(f"scratch_{way}_gb_per_s") for way in ("write", "read")]
    if (ways[0] is None) != (ways[1] is None):
        raise InputError(f"{where}: scratch_write_gb_per_s and scratch_read_gb_per_s belong together")
    return Instance(
        name=values["name"],
        vcpus=values["vcpus"],
        cores=values.get("cores", values["vcpus"]),
        memory=values["memory"],
        price=values["price_per_hour"],
        price_date=values["price_date"],
        price_source=values["price_source"],
        rates_date=values["rates_date"],
        factor=values.get("rate_factor", 1.0),
        rates=_rates(values["rates"], where) if "rates" in values else None,
        boot=values.get("boot_seconds", 0.0),
        workers=values.get("workers", 1),
        ranks=values.get("ranks", values.get("accelerators", 1)),
        interruptions=values.get("spot_interruptions_per_hour", 0.0),
        network=GIGA * values.get("network_gb_per_s", math.inf),
        scratch=None
        if ways[0] is None
        else DiskRates(GIGA * ways[0], GIGA * float(ways[1] or 0), values["rates_date"]),
        accelerator=values.get("accelerator", ""),
        accelerators=values.get("accelerators", 0),
    )


def _rates(table: Mapping[str, Any], where: str) -> dict[str, float]:
    _require_known(table, RATES, f"{where}: rates")
    missing = [name for name in RATES if name not in table]
    if missing:
        raise InputError(f"{where}: rates without {missing[0]}: all of {', '.join(RATES)} are needed")
    return {name: _checked(name, value, NUMBER, 1e-9, f"{where}: rates") for name, value in table.items()}


def _storage(table: Any, file: str) -> DiskRates:
    values = _values(table, STORAGE, f"{file}, storage")
    return DiskRates(GIGA * values["write_gb_per_s"], GIGA * values["read_gb_per_s"], values["date"])


def _values(table: Any, keys: Mapping[str, tuple[str, bool, float]], where: str) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise InputError(f"{where}: expected a table")
    _require_known(table, keys, where)
    missing = [key for key, (_, required, _) in keys.items() if required and key not in table]
    if missing:
        raise InputError(f"{where}: no {missing[0]}: expected {keys[missing[0]][0]}")
    return {key: _checked(key, value, keys[key][0], keys[key][2], where) for key, value in table.items()}


def _checked(key: str, value: Any, kind: str, least: float, where: str) -> Any:
    wrong = InputError(f"{where}: {key} = {value!r}: expected {kind}{f', {least:g} or more' if least else ''}")
    if kind == TEXT and isinstance(value, str) and value.strip():
        return value
    if kind == DAY and isinstance(value, date | str):
        try:
            return date.fromisoformat(str(value)).isoformat()
        except ValueError as error:
            raise InputError(f"{where}: {key} = {value!r}: expected a date such as 2026-11-21") from error
    if kind == SIZE and isinstance(value, str):
        return parse_bytes(value)
    if kind == TABLE and isinstance(value, dict):
        return value
    allowed = {NUMBER: (int, float), WHOLE: (int,)}.get(kind, ())
    if isinstance(value, bool) or not isinstance(value, allowed) or not math.isfinite(value) or value < least:
        raise wrong
    return float(value) if kind == NUMBER else value


def _require_known(table: Mapping[str, Any], known: Any, where: str) -> None:
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(key, list(known), n=1)
            raise InputError(f"{where}: unknown key {key!r}: expected {close[0] if close else ', '.join(known)}")
