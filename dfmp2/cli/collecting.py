"""Where `dfmp2 batch collect` writes to: a table of energies, or a data set in one or three files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dfmp2.errors import InputError
from dfmp2.errors.messages import Option
from dfmp2.execution.collect import Collection, collect, fit_for_dataset
from dfmp2.execution.manifest import Batch
from dfmp2.host.files import require_writable
from dfmp2.output.dataset import SPLITS, WRITERS, write_dataset
from dfmp2.output.table import write_rows

TABLES = (".h5", ".csv", ".json")


@dataclass(frozen=True, slots=True)
class Destination:
    """What is written, and where.

    Attributes
    ----------
    target : the file
    to : format of a data set, None for a table
    shares : of the parts of a data set, by name; none for one file
    """

    target: Path
    to: str | None
    shares: dict[str, float]
    overwrite: bool

    @classmethod
    def chosen(
        cls, results: Path, file: str, to: str | None, split: str | None, *, overwrite: bool
    ) -> Destination:
        """What the options mean.

        Parameters
        ----------
        results : folder of the batch, in which every .h5 is a result

        Raises
        ------
        InputError : they do not fit together
        """
        target = Path(file)
        if to is None:
            if split is not None:
                raise InputError(
                    Option("split", split), " belongs to a data set: choose one with ", Option("to")
                )
            if target.suffix not in TABLES:
                forms = {ending: name for name, (ending, _) in WRITERS.items()}
                hint = forms.get(target.suffix, "extxyz, h5, parquet, csv, json or ase.db")
                raise InputError(
                    f"-o {file}: expected a name ending in .h5, .csv or .json for a table of "
                    f"energies; for a data set add --to {hint}"
                )
        if target.suffix == ".h5" and target.parent.resolve() == results.resolve():
            raise InputError(
                f"-o {file}: every .h5 in {results} is the result of an item: name another folder"
            )
        return cls(target, to, {} if split is None else _shares(split), overwrite)

    def targets(self) -> dict[str, Path]:
        """The files by the part of the data set that they hold, "" for all of it."""
        if not self.shares:
            return {"": self.target}
        return {
            part: self.target.with_name(f"{self.target.stem}.{part}{self.target.suffix}")
            for part, share in self.shares.items()
            if share
        }

    def collect(
        self,
        batch: Batch,
        warn: Callable[[str], None],
        *,
        workers: int,
        allow_mixed: bool,
        duplicates: bool,
        uncertified: bool,
        split: str | None,
    ) -> Iterator[str]:
        """Collect and write; a line for each file."""
        collected = collect(batch, workers=workers, allow_mixed=allow_mixed)
        for path in self.targets().values():
            require_writable(path, overwrite=self.overwrite, option=Option("output"))
        if self.to is not None:
            collected = fit_for_dataset(collected, duplicates=duplicates, uncertified=uncertified)
        for remark in collected.remarks:
            warn(remark)
        if self.to is None:
            write_rows(self.target, collected.rows(), collected.notes(), overwrite=self.overwrite)
            yield f"{len(collected.records)} of {len(batch.items)} items -> {self.target}"
            return
        for part, path in self.targets().items():
            yield self._write_part(batch, collected, part, path)

    def _write_part(self, batch: Batch, collected: Collection, part: str, path: Path) -> str:
        records = collected.records
        if part:
            shares = list(self.shares.values())
            records = [record for record in records if record.split(shares) == part]
        if part and not records:
            return f"no item belongs to {part}: {path} is not written"
        write_dataset(path, str(self.to), records, overwrite=self.overwrite)
        return f"{len(records)} of {len(batch.items)} items -> {path}"


def _shares(text: str) -> dict[str, float]:
    """Shares of train, validation and test from "8:1:1"."""
    try:
        shares = [float(part) for part in text.split(":")]
    except ValueError:
        shares = []
    sound = len(shares) == len(SPLITS) and all(0 <= share < 1e9 for share in shares)
    if not sound or not sum(shares):
        raise InputError(
            Option("split", text), ": expected three shares of train:validation:test, as 8:1:1"
        )
    return dict(zip(SPLITS, shares, strict=True))
