"""Many molecules in Python: `dfmp2.batch`, and the outcome of each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from dfmp2.errors import InputError, Option, speaking
from dfmp2.errors.messages import PYTHON, in_words
from dfmp2.execution.batch import BatchRun
from dfmp2.execution.items import STATUS_KEYS, ItemStatus, read_inputs
from dfmp2.execution.manifest import (
    OF_THE_ITEM,
    Batch,
    leave_manifest,
    make_batch,
    read_batch,
    slug,
)
from dfmp2.execution.pool import local_pool
from dfmp2.host.files import make_folder, write_atomically
from dfmp2.interop.python import (
    MoleculeLike,
    NoKeywords,
    TranslatingListener,
    number_of_workers,
    public,
    read,
    read_molecule,
)
from dfmp2.molecule.xyz import write_xyz
from dfmp2.mp2.result import MP2Result
from dfmp2.options import OF_THE_MACHINE, Keywords, default_backend, make_options, parse_texts
from dfmp2.options.methods import MP2
from dfmp2.output.json import UNITS_OF_NUMBERS, frame
from dfmp2.progress import Listener
from dfmp2.units import counted_text

if TYPE_CHECKING:
    from pandas import DataFrame


class BatchResult(Mapping[str, MP2Result]):
    """Outcome of a batch: the results of its complete items by name, each read when needed.

    Attributes
    ----------
    output : folder of the results
    rows : all items, including those that failed (`dfmp2.execution.items.ItemStatus`)
    """

    def __init__(self, output: Path, rows: Sequence[ItemStatus]) -> None:
        self.output, self.rows = output, tuple(rows)

    @property
    def failed(self) -> dict[str, str]:
        """Message of each failed item, by name."""
        return {
            row.name: in_words(row.error or "", PYTHON)
            for row in self.rows
            if row.status == "failed"
        }

    def to_dataframe(self) -> DataFrame:
        """A pandas DataFrame with one row per item, indexed by name; units are in
        `attrs["units"]`.

        Raises
        ------
        InputError : pandas is not installed
        """
        columns = {
            name: [getattr(row, name) for row in self.rows] for name in (*STATUS_KEYS[1:], "method")
        }
        columns["error"] = [self.failed.get(row.name) for row in self.rows]
        columns["total_energy"] = [row.energy for row in self.rows]
        columns["mp2_total_energy"] = [
            row.energy if row.method in ("", MP2.title) else None for row in self.rows
        ]
        return frame(columns, UNITS_OF_NUMBERS, [row.name for row in self.rows])

    def __getitem__(self, name: str) -> MP2Result:
        # Rows have the names of files, in which other characters are replaced.
        row = next((row for row in self.rows if row.name == slug(str(name))), None)
        if row is None:
            raise KeyError(f"{name}: there is no such item")
        if row.output is None:
            raise KeyError(f"{name}: {self.failed.get(row.name, row.status)}")
        return read(row.output)

    def __iter__(self) -> Iterator[str]:
        return (row.name for row in self.rows if row.status == "complete")

    def __len__(self) -> int:
        return sum(row.status == "complete" for row in self.rows)

    def __repr__(self) -> str:
        failed = f", {len(self.failed)} failed" if self.failed else ""
        items = counted_text(len(self.rows), "item")
        return f"BatchResult({len(self)} of {items} complete{failed} -> {self.output})"

    def __str__(self) -> str:
        titles = {row.method or MP2.title for row in self.rows if row.energy is not None}
        energy = "total energy / Eh"
        if len(titles) == 1:
            energy = f"E({titles.pop()}, total) / Eh"
        lines = [f"{'item':<24}{'status':<10}{energy:>18}"]
        for row in self.rows:
            if row.energy is not None:
                said = f"{row.energy:18.10f}"
            else:
                said = self.failed.get(row.name, "")
            lines.append(f"{row.name:<24}{row.status:<10}{said}")
        return "\n".join([*lines, repr(self)])


class BatchKeywords(Keywords, total=False):
    """Keywords of a batch: options of the calculation, and the other entries of a manifest."""

    task: str
    keep: str


@public(BatchKeywords)
def batch(
    molecules: str | os.PathLike[str] | Sequence[MoleculeLike] | Mapping[str, MoleculeLike],
    basis: str | None = None,
    output: str | os.PathLike[str] | None = None,
    *,
    workers: int = 1,
    chained: bool = False,
    listener: Listener | None = None,
    **options: Unpack[BatchKeywords],
) -> BatchResult:
    """Compute many molecules in separate processes of this host; complete items are not computed
    again.

    Parameters
    ----------
    molecules : a manifest (.toml), or molecules as in `run`: a list, or a mapping from the names of
        their results, whose files have "_" for spaces and slashes. Molecules that are not files are
        written to OUTPUT/molecules
    task : str, optional
        "energy", "properties", "gradient" or "optimize".
    keep : str, optional
        What each result contains: "all", "properties" (no orbitals and densities), or "energies"
        (with forces).
    basis, options : for all molecules; a manifest has its own, and accepts only memory, threads and
        scratch here
    output : str or path
        Folder of the results, None for the one in the manifest.
    workers : number of processes; `memory` is shared by all of them, `threads` are per process
    chained : bool, optional
        Start each SCF from the orbitals of the previous item if it has the same atoms.
    listener : Listener, optional
        Receives an event for each item, and a warning for each that failed.

    Returns
    -------
    BatchResult: `result["NAME"]` reads a result, `to_dataframe` has a row for each item, `failed`
    lists the failed ones

    Raises
    ------
    dfmp2.Dfmp2Error : only before anything is computed; the failure of an item is in its row
    dfmp2.DiskFull : the disk is full; complete items are kept, and the same call continues

    Examples
    --------
    >>> results = dfmp2.batch(["a.xyz", "b.xyz"], "cc-pvdz", "results", workers=2)            # doctest: +SKIP
    >>> results["a"].mp2_total_energy                                                         # doctest: +SKIP
    """
    workers = number_of_workers(workers)
    values: dict[str, Any] = {**options}
    if basis is not None:
        values["basis"] = basis
    is_one = hasattr(molecules, "get_chemical_symbols")  # ASE's Atoms can be iterated over
    if is_one or not isinstance(molecules, str | os.PathLike | Iterable):
        raise InputError(f"{molecules!r}: expected molecules in a list, or a manifest")
    if isinstance(molecules, str | os.PathLike):
        planned = _manifest(molecules, values, output)
    else:
        planned = _planned(molecules, values, output)
    machine = {name: values[name] for name in OF_THE_MACHINE if values.get(name) is not None}
    common = replace(planned.items[0].options, **machine)
    inputs = read_inputs(planned)
    run = BatchRun(
        batch=planned,
        inputs=inputs,
        mine=range(len(inputs)),
        listener=TranslatingListener(listener),
        chained=chained,
        scratch=common.scratch,
        command="dfmp2.batch",
    )
    if planned.optimizes:
        from dfmp2.studies.optimize import minimum

        run.optimize = minimum
    run.require_surroundings()
    run.compute(local_pool(planned.device, workers, common.threads, common.memory), workers)
    if run.blocked:
        raise run.unwritable(run.blocked)
    return BatchResult(planned.output, list(run.rows.values()))


def _planned(
    molecules: Sequence[MoleculeLike] | Mapping[str, MoleculeLike],
    values: Mapping[str, Any],
    output: str | os.PathLike[str] | None,
) -> Batch:
    """The batch of molecules without a manifest."""
    if output is None:
        raise InputError("output was not given: name the folder of the results")
    # Wrong options are rejected before a file is written.
    values = {"backend": default_backend(), **values}
    make_options(**{name: value for name, value in values.items() if name not in OF_THE_ITEM})
    planned = make_batch(_files(molecules, Path(output) / "molecules"), values, Path(output))
    leave_manifest(planned)
    return planned


def _manifest(
    file: str | os.PathLike[str], values: Mapping[str, Any], output: str | os.PathLike[str] | None
) -> Batch:
    """The batch of a manifest; only options of the machine may be given besides."""
    foreign = sorted(set(values) - set(OF_THE_MACHINE))
    if foreign:
        raise InputError(f"{foreign[0]} with a manifest: write it into {os.fspath(file)}")
    folder = Path(output) if output is not None else None
    return read_batch(Path(file), output=folder)


def _files(molecules: Any, folder: Path) -> list[str]:
    """The xyz file of each molecule, written if there is none.

    Raises
    ------
    InputError : a molecule has point charges, or two would have the same file
    """
    named = [(None, molecule) for molecule in molecules]
    if isinstance(molecules, Mapping):
        named = list(molecules.items())
    files: list[str] = []
    made: dict[Path, tuple[str, str]] = {}  # names and texts
    for name, source in named:
        if name is None and isinstance(source, str | os.PathLike):
            files.append(os.fspath(source))
            continue
        molecule = read_molecule(source, {})
        if molecule.point_charges is not None:
            raise InputError(
                f"{molecule!r}: an xyz file holds no point charges: name them in a manifest"
            )
        if name is None or name == "":
            name = f"{molecule.name}-{len(files) + 1}"
        name = str(name)
        path = folder / f"{slug(name)}.xyz"
        if path in made:
            raise InputError(
                f"{made[path][0]!r} and {name!r} would have the same file, {path.name}: give them "
                "names that differ in their first 100 letters and digits"
            )
        made[path] = name, write_xyz(molecule)
        files.append(str(path))
    for path, (_, text) in made.items():
        make_folder(folder)
        write_atomically(path, text.encode(), overwrite=True)
    return files


@public(NoKeywords)
def read_many(
    source: str | os.PathLike[str], *, only: Sequence[str] = (), verify: bool = True
) -> Iterator[tuple[str, Any]]:
    """Name and result of each complete item of a batch, read one at a time.

    Parameters
    ----------
    source : output folder of a batch, or any folder of result files; those of an earlier batch in
        the same folder count, too
    only : attributes of a result, such as ("total_energy", "gradient.mp2_total_gradient",
        "molecule.coordinates"): yields a dict of them instead of the result, None where a result
        lacks one
    verify : check the stored hashes

    Raises
    ------
    InputError : the folder does not exist, or no result has an attribute of that name
    ResultFileError : a file is damaged

    Examples
    --------
    >>> dict(dfmp2.read_many("results", only=("total_energy",)))                # doctest: +SKIP
    """
    folder = Path(source)
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder: name the output folder of a batch")
    only = parse_texts("only", only, "total_energy")
    for attribute in only:
        if attribute.partition(".")[0] not in dir(MP2Result):
            raise InputError(Option("only", attribute), ": a result has no such attribute")
    return _read_each(sorted(folder.glob("*.h5")), only, verify=verify)


def _read_each(
    paths: Sequence[Path], only: tuple[str, ...], *, verify: bool
) -> Iterator[tuple[str, Any]]:
    for path in paths:
        result = read(path, verify=verify)
        if only:
            yield path.stem, {attribute: _part_of(result, attribute) for attribute in only}
        else:
            yield path.stem, result


@speaking(PYTHON)
def _part_of(result: MP2Result, attribute: str) -> Any:
    """An attribute of a result, or of a part of it; None if the part is missing."""
    value: Any = result
    for name in attribute.split("."):
        if value is None:
            return None
        try:
            value = getattr(value, name)
        except AttributeError as error:
            raise InputError(
                Option("only", attribute), f": {type(value).__name__} has no {name}"
            ) from error
    return value
