"""A stopped run can be resumed: after its SCF with the same bits, within its SCF with the same
convergence."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import h5py
import numpy as np
import pytest

from dfmp2.backends.base import PairTerms, Tile
from dfmp2.errors import Interrupted
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.xyz import read_xyz
from dfmp2.mp2 import energy
from dfmp2.mp2.calculation import NOTHING, Checkpoint, State, StoredB
from dfmp2.mp2.identity import FREE, PROCESSOR, fingerprint
from dfmp2.options import Options
from dfmp2.output import checkpoint as files
from dfmp2.output import hdf5
from dfmp2.output.checkpoint import VARIABLE, FileCheckpoint, checkpointing
from dfmp2.output.state import decode, encode
from dfmp2.scf import ladder
from dfmp2.scf.reference import StartOrbitals
from tests.awkward import CHARGES, MOLECULES
from tests.conftest import INPUTS, Heard
from tests.faults import Saved, Stopping, close, numbers, recorded
from tests.recorded import recorded_error
from tests.test_cli_options import GIVEN
from tests.test_disk import set_variant

SMALL = Options(basis="sto-3g", threads=1, backend="cpu")
Bits = dict[str, bytes]
pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize("waits", [None, False, True])
def test_a_run_that_is_asked_to_stop(waits: bool | None, tmp_path: Path) -> None:
    """It stops at its next event, or at the next safe point if there is a checkpoint to resume
    from."""
    asked: list[bool] = []
    stop = files.Stop(lambda: bool(asked))
    if waits is not None:
        stop.checkpoint = FileCheckpoint(tmp_path / "x.h5", eager=waits)
    events = (
        lambda: stop.stage("SCF"),
        lambda: stop.scf_cycle(1, 0.0, 0.0, 0.0),
        lambda: stop.step(1, 2, "tiles"),
    )
    for event in events:
        event()
    asked.append(True)
    for event in events:
        if waits:
            event()
            assert stop.checkpoint is not None and stop.checkpoint.stop_asked
        else:
            with recorded_error(Interrupted):
                event()


def compute(name: str, options: Options, checkpoint: Checkpoint = NOTHING, **more: Any) -> Bits:
    molecule = read_xyz(INPUTS / f"{name}.xyz").molecule
    listener = more.pop("listener", None) or Heard()
    return numbers(
        hdf5.to_bytes(
            energy.mp2_energy(molecule, options, listener=listener, checkpoint=checkpoint, **more)
        )
    )


def passing(name: str, options: Options, folder: Path) -> tuple[Bits, Saved]:
    """The numbers of a run, and all states it passed through."""
    with recorded() as passed:
        return compute(name, options, FileCheckpoint(folder / "x.h5")), passed


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Bits, Saved]]:
    """The numbers and states of both molecules."""
    folder = tmp_path_factory.mktemp("passing")
    return {name: passing(name, SMALL, folder) for name in ("h2o", "nh2")}


@pytest.fixture
def states(
    computed: dict[str, tuple[Bits, Saved]], monkeypatch: pytest.MonkeyPatch
) -> dict[str, tuple[Bits, Saved]]:
    """The numbers and states; resumed runs are saved wherever possible."""
    monkeypatch.setenv(VARIABLE, "0")
    return computed


# All three rungs on an easy molecule, and float32 exchange in one of any size.
SMALL_LADDER = {"DIIS_LEAST": 3, "DIIS_SHARE": 0.15, "SHIFT_SHARE": 0.2}
EARLY_SINGLE = {"SINGLE_LEAST": 1, "SINGLE_UNTIL": 1e-2}


@pytest.mark.parametrize(
    ("name", "options", "settings"),
    [
        pytest.param("h2o", {}, EARLY_SINGLE, marks=pytest.mark.bits),
        pytest.param("nh2", {"scf_max_cycles": 30}, SMALL_LADDER, marks=pytest.mark.slow),
        pytest.param(  # pair energies repeated in float64
            "nh2",
            {"tolerance": 1e-12, "stability": "full"},
            {},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["float32 exchange", "ladder", "repeated, full stability"],
)
def test_resumed_from_any_state(
    name: str,
    options: dict[str, Any],
    settings: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for setting, value in settings.items():
        monkeypatch.setattr(ladder, setting, value)
    monkeypatch.setenv(VARIABLE, "0")
    chosen = Options(basis="sto-3g", threads=1, **options)
    whole, (found, passed) = compute(name, chosen), passing(name, chosen, tmp_path)
    assert found == whole  # saving changes nothing
    within = [state for state in passed if state.reference is None]
    after = [state for state in passed if state.reference is not None]
    assert (
        all(state.orbitals is not None for state in within) and len(within) > 5 and len(after) > 5
    )
    assert all(state.orbitals is None for state in after)  # the reference has them
    assert compute(name, chosen, FileCheckpoint(tmp_path / "y.h5", after[len(after) // 2])) == whole
    with recorded() as more:
        compute(name, chosen, FileCheckpoint(tmp_path / "y.h5", after[-1]))
    assert all(state.tiles.keys() == after[-1].tiles.keys() != set() for state in more)
    assert all(state.reference is not None for state in more) and more
    said = Heard()
    found = compute(name, chosen, FileCheckpoint(tmp_path / "y.h5", within[-1]), listener=said)
    cycles = [
        int(np.frombuffer(bits["dfmp2/reference/cycles"], dtype=np.int64)[0])
        for bits in (found, whole)
    ]
    assert close(found, whole) and cycles[0] <= cycles[1] // 2
    assert any("going on from" in text for text in said.stages)
    again = FileCheckpoint(tmp_path / "y.h5", within[-2], in_batch=True)
    assert compute(name, chosen, again) == whole


def test_tiles_of_another_cut_are_not_taken(states: Any, tmp_path: Path) -> None:
    """A tile is identified by its position: one of another width is computed again, as is one of
    the repetition in float64."""
    whole, passed = states["h2o"]
    state = passed[-1]
    assert state.tiles
    for (number, left, right, tile), terms in list(state.tiles.items()):
        wrong = PairTerms(*(None if part is None else part + 1.0 for part in terms))
        del state.tiles[number, left, right, tile]
        for key in (
            (number, left, right, tile._replace(i1=tile.i1 + 1)),
            (number + 1, left, right, tile),
        ):
            state.tiles[key] = wrong
        state.tiles[number, left, right, tile._replace(diagonal=not tile.diagonal)] = wrong
    assert compute("h2o", SMALL, FileCheckpoint(tmp_path / "y.h5", state)) == whole


def test_tiles_of_another_b_are_not_taken(states: Any, tmp_path: Path) -> None:
    """If B on disk is lost it is made again, perhaps from other blocks of integrals, so its last
    bits may differ."""
    whole, passed = states["h2o"]
    state = passed[-1]
    for key, terms in state.tiles.items():
        state.tiles[key] = PairTerms(*(None if part is None else part + 1.0 for part in terms))
    # They would be taken
    assert compute("h2o", SMALL, FileCheckpoint(tmp_path / "y.h5", state)) != whole
    state.b = StoredB(str(tmp_path / "gone"), (), (), 1.0, 0, 0.0)
    assert compute("h2o", SMALL, FileCheckpoint(tmp_path / "y.h5", state)) == whole


# --- B on disk ------------------------------------------------------------------------------------


@pytest.fixture
def on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    """Options of a run with everything on disk, in `scratch`; its checkpoint is saved wherever
    possible."""
    set_variant(monkeypatch, disk=True)
    monkeypatch.setenv(VARIABLE, "0")
    (tmp_path / "scratch").mkdir()
    return Options(basis="sto-3g", threads=1, scratch=str(tmp_path / "scratch"))


@pytest.mark.parametrize(("name", "every", "least"), [("nh2", 17, 3), ("h2o", 12, 1)])
def test_stopped_again_and_again_with_everything_on_disk(
    name: str, every: int, least: int, on_disk: Options, tmp_path: Path
) -> None:
    """The stability of a closed shell, determined while B is made, is present at the end as
    well."""
    whole, target, stops = compute(name, on_disk), tmp_path / "x.h5", 0
    assert "dfmp2/stability/lowest_eigenvalue" in whole
    with Stopping(every=every):
        while True:
            said = Heard()
            try:
                with checkpointing(
                    target, resume=True, note=said.stage, warn=pytest.fail, in_batch=True
                ) as kept:
                    found = compute(name, on_disk, kept, listener=said)
                    kept.complete()
                break
            except Interrupted:
                stops += 1
                assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [
                    "x.h5.checkpoint"
                ]
    assert found == whole and stops >= least
    assert any("checking the fitted integrals" in text for text in said.stages)
    assert [path.name for path in tmp_path.iterdir()] == ["scratch"] and not list(
        (tmp_path / "scratch").iterdir()
    )


@pytest.mark.parametrize("damage", ["changed", "short"])
def test_b_that_is_not_what_it_was_is_made_again(
    damage: str, on_disk: Options, tmp_path: Path
) -> None:
    whole, target, said = compute("h2o", on_disk), tmp_path / "x.h5", Heard()
    with (
        Stopping(at_tile=1),
        pytest.raises(Interrupted),
        checkpointing(target, resume=False, note=said.stage, warn=pytest.fail) as kept,
    ):
        compute("h2o", on_disk, kept)
    (file,) = tmp_path.glob("scratch/*/b-0.raw")
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content if damage == "changed" else content[: len(content) // 2])
    with checkpointing(target, resume=True, note=said.stage, warn=pytest.fail) as kept:
        assert compute("h2o", on_disk, kept, listener=said) == whole
        kept.complete()
    assert any("are not used" in text for text in said.stages + said.warnings)
    assert [path.name for path in tmp_path.iterdir()] == ["scratch"] and not list(
        (tmp_path / "scratch").iterdir()
    )


def test_b_is_told_before_the_state_that_refers_to_it_is_saved(
    on_disk: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The converged SCF is saved first, and again with the stability determined beside B."""
    told: list[bool] = []
    monkeypatch.setattr(
        FileCheckpoint, "add_reference", lambda kept, _: told.append(kept.b is not None)
    )
    compute("h2o", on_disk, FileCheckpoint(tmp_path / "x.h5"))
    assert told == [False, True]


@pytest.mark.parametrize("kind", ["uhf", "rohf"])
def test_orbitals_of_every_iteration_are_saved_with_their_spins(kind: str, tmp_path: Path) -> None:
    """The last ones are nearly those of the converged SCF."""
    molecule = read_xyz(INPUTS / "nh2.xyz").molecule
    options = replace(SMALL, reference=kind)
    with recorded() as passed:
        kept = FileCheckpoint(tmp_path / "x.h5")
        result = energy.mp2_energy(molecule, options, checkpoint=kept)
    within = [state.orbitals for state in passed if state.reference is None]
    assert len(within) == result.reference.cycles
    np.testing.assert_allclose(density_of(within[-1]), density_of(result.reference), atol=1e-4)


def density_of(orbitals: Any) -> Any:
    """Density matrix of each spin, (nspin, nao, nao)."""
    return np.einsum("spi,si,sqi->spq", orbitals.mo_coeff, orbitals.mo_occ, orbitals.mo_coeff)


# --- which run it belongs to ----------------------------------------------------------------------


def test_a_checkpoint_is_of_everything_that_its_numbers_depend_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every option but those that change neither orbitals nor pair energies, and the whole input;
    no two of these are alike."""
    first = MOLECULES["methylene"]
    begin = Mock(side_effect=Interrupted("asked"))  # stops a run as soon as it says what it is
    monkeypatch.setattr(Checkpoint, "begin", begin)

    def identity(molecule: Molecule, start: StartOrbitals | None = None, **given: Any) -> str:
        options = Options(**{"basis": "6-31g", "threads": 1, "allow_poor_fit": True, **given})
        with pytest.raises(Interrupted, match="asked"):
            energy.mp2_energy(
                molecule, options, checkpoint=Checkpoint(), start=start, listener=Heard()
            )
        return repr(sorted(begin.call_args.args[0].items()))

    plain = identity(first)
    changes: list[dict[str, Any]] = [
        {"method": "b2plyp"},
        {"method": "drpa", "xc": "pbe", "grid": "20,50"},
        {"method": "kappa-mp2", "kappa": 1.3},
        {"reference": "rohf"},
        {"auxbasis": "def2-svp-ri"},
        {"frozen_core": "1"},
        {"solvent": "water"},
    ]
    same = {"os_scale", "ss_scale", "check", "properties", "polarizability", "certify_fit"}
    same |= {"memory", "scratch", "allow_small_gap", "allow_poor_fit", "dispersion", "transform"}
    reached = {name for change in changes for name in change}
    reached |= {"scf_from", "laplace", "solvent_model"}
    for name, (_, value) in GIVEN.items():
        if name in same:
            assert identity(first, **{name: value}) == plain, name
        elif name not in reached:
            changes.append({name: value})
    found = [plain, *(identity(first, **change) for change in changes)]
    others = [
        replace(first, coordinates=first.coordinates * 1.01),
        replace(first, ghost=(False, False, True), multiplicity=2),
        first.with_state(1, 2),
        first.with_state(-1, 2),
        first.with_state(0, 1),
        first.with_state(0, 5),
        first.in_field(CHARGES),
        first.in_field(CHARGES[:1]),
    ]
    found += [identity(molecule) for molecule in others]
    for occupations in ([1.0] * 4, [1.0] * 5):
        start = StartOrbitals(np.eye(13)[None], np.array([occupations + [0.0] * 8]), None, "a file")
        found.append(identity(first, start))
    assert len(set(found)) == len(found) > 28


def test_a_run_that_goes_on_elsewhere_says_so(
    states: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint from another kind of processor belongs to the same calculation, but its last
    bits differ."""
    _, passed = states["h2o"]
    here = passed[-1].identity[PROCESSOR]
    monkeypatch.setattr("dfmp2.mp2.identity.threads.kernels", lambda: "Zen9 (NumPy), AVX1024")
    said = Heard()
    kept = FileCheckpoint(tmp_path / "x.h5", passed[-1])
    compute("h2o", SMALL, kept, listener=said)
    (warning,) = said.warnings
    assert f"another kind of processor ({here} there, Zen9 (NumPy), AVX1024 here)" in warning
    monkeypatch.undo()
    said = Heard()  # what it saved there is of both
    again = FileCheckpoint(tmp_path / "x.h5", replace(passed[-1], identity=kept.identity))
    compute("h2o", SMALL, again, listener=said)
    (warning,) = said.warnings
    assert f"({here} and Zen9 (NumPy), AVX1024 there, {here} here)" in warning
    assert again.ask_to_stop()  # although nothing was saved since


def test_what_makes_two_runs_the_same() -> None:
    """One function decides for results, studies and batches."""
    first = Molecule.from_string("He 0 0 0; He 0 0 3")
    asked = fingerprint(first, SMALL)
    others = [
        (Molecule.from_string("He 0 0 0; @He 0 0 3"), SMALL, ""),
        (Molecule.from_string("@He 0 0 0; He 0 0 3"), SMALL, ""),
        (Molecule.from_string("He 0 0 0; He 0 0 3.0000001"), SMALL, ""),
        (first.with_state(2, 1), SMALL, ""),
        (first.with_state(0, 3), SMALL, ""),
        (first.in_field(np.array([[0.0, 0.0, 9.0, 0.5]])), SMALL, ""),
        (first, SMALL, "hash of start orbitals"),
    ]
    different = {
        "basis": "6-31g",
        "reference": "uhf",
        "relativity": "x2c",
        "scf": "conventional",
        "stability": "full",
        "scf_auxbasis": "a",
        "guess": "core",
        "auxbasis": "a",
        "frozen_core": "auto",
        "backend": "torch",
        "precision": "fp64",
        "transform": "host",
        "check": True,
        "scf_conv_tol": 1e-9,
        "tolerance": 1e-8,
        "certify_fit": True,
        "dispersion": "none",
        "scf_starts": 2,
        "frozen_virtual": 1,
        "os_scale": 1.1,
        "ss_scale": 1.1,
        "properties": True,
        "polarizability": True,
        "method": "kappa-mp2",
    }
    assert {field.name for field in fields(Options)} == {
        *different,
        *("kappa", "xc", "grid", "laplace", "solvent", "solvent_model"),
        *FREE,
    }
    more: tuple[dict[str, Any], ...] = (
        {"method": "kappa-mp2", "kappa": 1.3},
        {"method": "drpa"},
        {"method": "drpa", "xc": "pbe"},
        {"method": "drpa", "xc": "pbe", "grid": "5"},
        {"method": "drpa", "xc": "pbe", "grid": "99,590"},
        {"method": "pwpb95"},
        {"method": "pwpb95", "laplace": True},
        {"solvent": "water"},
        {"solvent": "toluene"},
        {"solvent": "water", "solvent_model": "smd"},
    )
    others += [(first, replace(SMALL, **values), "") for values in more]
    others += [(first, replace(SMALL, **{name: value}), "") for name, value in different.items()]
    found = {fingerprint(*other) for other in others}
    assert len(found) == len(others) and asked not in found
    free = {
        "memory": 10**9,
        "threads": 2,
        "scratch": "/tmp",
        "scf_max_cycles": 7,
        "scf_from": "x.h5",
    }
    assert (
        fingerprint(first, replace(SMALL, **free, allow_small_gap=True, allow_poor_fit=True))
        == asked
    )


# --- when it is saved -----------------------------------------------------------------------------


def test_what_is_quick_leaves_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "write_atomically", pytest.fail)
    compute("h2o", SMALL, FileCheckpoint(tmp_path / "x.h5"))


# --- the file -------------------------------------------------------------------------------------


def example() -> State:
    rng = np.random.default_rng(0)
    return State(
        {"geometry": "a"},
        StartOrbitals(rng.random((2, 3, 3)), rng.random((2, 3)), None, "the checkpoint"),
        None,
        StoredB("/scratch/here", ((2, 3, 4),), (("ab",),), 1.5, 0, 0.0),
        {
            (0, 0, 0, Tile(0, 2, 0, 2, True)): PairTerms(rng.random((2, 2)), rng.random((2, 2))),
            (0, 0, 0, Tile(0, 2, 2, 3, False)): PairTerms(rng.random((2, 1)), rng.random((2, 1))),
            (1, 1, 1, Tile(0, 1, 0, 2, False)): PairTerms(rng.random((1, 2)), rng.random((1, 2))),
            (1, 0, 1, Tile(0, 1, 0, 3, False)): PairTerms(rng.random((1, 3)), None),
        },
    )


def test_damage_of_any_byte_is_found() -> None:
    """In a number, or in the name, type or shape of an array."""
    content = encode(example())
    begin = content.index(b"sha256 ")
    for place in range(begin, len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 0x10
        with pytest.raises(ValueError, match="does not have the stored hash"):
            decode(bytes(damaged))


DIRECT_OF_NH2 = -0.08336336527334631  # Eh: over all tiles of the files below, from their writer
NPZ = Path(__file__).parent / "data" / "checkpoints_npz"


def require_same(found: State, expected: State) -> None:
    """Compare two states field by field."""
    np.testing.assert_equal(asdict(found), asdict(expected))


def test_a_state_keeps_every_bit(states: Any) -> None:
    """Orbitals, reference, tiles in their order, B elsewhere, and texts that are not UTF-8."""
    odd = replace(example(), b=StoredB("/scr\udcff/\u00e4", ((2, 3, 4),), (("a",),), 1.5, 1, 0.1))
    odd.identity = {"a file": "x\udcff", "": "\u03b1\n"}
    for state in (odd, states["nh2"][1][-1]):
        again = decode(encode(state))
        require_same(again, state)
        assert list(state.tiles) == list(again.tiles)


def test_a_checkpoint_is_an_hdf5_file(tmp_path: Path) -> None:
    """Any reader opens it, however long the scratch folder's name is; the layout is that of a
    result and of a prepared file."""
    state = decode((NPZ / "tiles.checkpoint").read_bytes())
    state.b = StoredB("/a" * 700, ((4, 2, 9), (3, 3, 9)), (("ab",), ("cd",)), 1.0, 0, 0.0)
    path = tmp_path / "x.checkpoint"
    path.write_bytes(encode(state))
    with h5py.File(path) as handle:
        assert handle["scf/e_tot"][()] == state.reference.scf_total_energy
        assert np.array_equal(handle["scf/mo_coeff"], state.reference.mo_coeff)
        assert len(handle["tiles/index"]) == len(state.tiles)
        assert list(handle["b/beta_sha256"].asstr()) == ["cd"]


def test_version_2_is_read() -> None:
    """Files written by the last version with npz archives: NH2 in STO-3G; the state with all tiles
    is that of the run below."""
    scf, shard = (decode((NPZ / f"{name}.checkpoint").read_bytes()) for name in ("scf", "shard"))
    for state in (scf, shard):
        assert state.identity["multiplicity"] == "2"
        require_same(decode(encode(state)), state)
    assert scf.orbitals is not None and scf.orbitals.mo_coeff.shape == (2, 7, 7)
    assert scf.orbitals.mo_occ.sum() == 9
    direct = sum(float(terms.direct.sum()) for terms in shard.tiles.values())
    assert len(shard.tiles) == 45 and direct == pytest.approx(DIRECT_OF_NH2, abs=1e-12)


def test_a_run_goes_on_from_version_2(states: Any, tmp_path: Path) -> None:
    whole, passed = states["nh2"]
    state = decode((NPZ / "tiles.checkpoint").read_bytes())
    # Earlier versions did not record the processor.
    state.identity = {name: text for name, text in passed[-1].identity.items() if name != PROCESSOR}
    said = Heard()
    found = compute("nh2", SMALL, FileCheckpoint(tmp_path / "y.h5", state), listener=said)
    # Since then, the rotation that an SCF leaves is stored beside its orbitals.
    before = {name: value for name, value in whole.items() if "rotation_left" not in name}
    assert close(found, before) and not any("SCF   " in text for text in said.stages)
    assert not said.warnings and "going on from" in " ".join(said.stages)


@pytest.mark.parametrize(
    ("every", "spent", "expected"),
    [
        ("5", 0.5, [105.1, 155.7]),
        ("5", 0.03, [105.1, 155.5]),
        ("0", 0.5, [100.1, 104.9, 106.0, 109.0, 155.5, 156.5]),
    ],
)
def test_at_most_a_hundredth_of_the_time_is_spent_on_saving(
    every: str,
    spent: float,
    expected: list[float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first save follows `every` s after the beginning. By the monotonic clock alone: that of
    the system may be set back."""
    now = 0.0
    saved: list[float] = []

    def write(_: FileCheckpoint) -> None:
        nonlocal now
        saved.append(now)
        now += spent

    monkeypatch.setattr(files, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(FileCheckpoint, "write", write)
    monkeypatch.setenv(VARIABLE, every)
    kept = FileCheckpoint(tmp_path / "x.h5")
    now = 100.0
    kept.begin({}, Heard())
    for moment in (100.1, 104.9, 105.1, 106.0, 109.0, 155.5, 155.7, 156.5):
        now = moment
        kept.add_orbitals(np.eye(2)[None], np.array([[2.0, 0.0]]))
    assert saved == expected
