"""`dfmp2 batch submit --aws-batch`: requests in the form AWS accepts, arrays whose containers can
be lost at any time."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import zipfile
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest

from dfmp2.errors import BackendUnavailable, InputError, Interrupted, ResourceError
from dfmp2.execution import aws as aws_jobs
from dfmp2.execution.aws import (
    PROGRAM,
    RESULT,
    fetch_items,
    pack,
    unpacked_archive,
)
from dfmp2.execution.batch import of_shard
from dfmp2.execution.items import Input, read_input
from dfmp2.execution.manifest import read_manifest
from dfmp2.host.s3 import Copies, asking, connect, kept
from dfmp2.output.checkpoint import FileCheckpoint
from tests.aws import PLACE, PREFIX, REGION, ROLE, VARIABLES, Bucket, simulated
from tests.conftest import MOLECULES, Runner, succeed, wait_until
from tests.faults import EACH
from tests.recorded import recorded_error, recorded_failure
from tests.test_batch import HEAD, items

BASE = (
    "batch",
    "submit",
    "batch.toml",
    "--aws-batch",
    "--queue",
    "queue",
    "--image",
    "repository/dfmp2:1",
)
OPTIONS = ("--basis", "sto-3g", "--precision", "fp64", "--threads", "1")
S3 = ("--s3", PLACE, "--shards")
CHECKPOINT = "results/row.h5.checkpoint"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty bucket, which containers of this process reach."""
    pytest.importorskip("boto3")
    made = Bucket()
    monkeypatch.setattr(aws_jobs, "connect", lambda service: made)
    return made


@pytest.fixture
def batch(folder: Path) -> Path:
    """A folder with the manifest of three small molecules."""
    write(folder, "h2", "h2o", "nh2")
    return folder


def write(folder: Path, *names: str, head: str = HEAD) -> None:
    (folder / "batch.toml").write_text(head + items(*names))


# --- what is sent ---------------------------------------------------------------------------------


def test_dry_run_needs_neither_boto3_nor_credentials(
    batch: Path, call: Runner, monkeypatch
) -> None:
    """--submit says what is missing."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in (
        ("EC2_METADATA_DISABLED", "true"),
        ("SHARED_CREDENTIALS_FILE", "-"),
        ("CONFIG_FILE", "-"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    arguments = (*BASE, *S3, "3")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "boto3", None)
        assert "Nothing was submitted" in succeed(call(*arguments)).out
        assert call(*arguments, "--submit").code == 6
    pytest.importorskip("boto3")
    for _ in ("no region", "no credentials"):
        recorded_failure(call(*arguments, "--submit"), 6)
        monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)


CODES = {
    BackendUnavailable: (
        "NoRegionError ExpiredToken UnrecognizedClientException NoCredentialsError "
        "InvalidAccessKeyId SignatureDoesNotMatch ProfileNotFound AuthFailure"
    ),
    InputError: (
        "301 400 404 ClientException InvalidBucketName NoSuchBucket NoSuchKey NotFound "
        "ParamValidationError PermanentRedirect ValidationException"
    ),
    ResourceError: "AccessDenied SlowDown 403 500 InternalError",
}


@pytest.mark.parametrize(
    ("kind", "code"), [(kind, code) for kind, codes in CODES.items() for code in codes.split()]
)
def test_what_aws_answers_becomes_an_error_with_its_code(kind: type[Exception], code: str) -> None:
    """Errors are classified by what the user should do next."""
    exceptions = pytest.importorskip("botocore.exceptions")
    with pytest.raises(kind) as caught, asking("writing x"):
        raise exceptions.ClientError({"Error": {"Code": code, "Message": "told\n ."}}, "PutObject")
    advice = ": see `aws configure`, --region and --profile" * (kind is BackendUnavailable)
    assert type(caught.value) is kind and str(caught.value) == f"writing x: {code}: told {advice}"
    with pytest.raises(ResourceError) as caught, asking("writing x"):
        raise OSError("disk")
    assert str(caught.value) == "writing x: OSError: disk"


def test_a_batch_goes_to_the_region_and_account_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its inputs too; the array waits for the job that compiles its programs."""
    pytest.importorskip("boto3")
    monkeypatch.setattr(aws_jobs, "connect", connect := MagicMock())
    connect().submit_job.side_effect = [{"jobId": "7"}, {"jobId": "8"}]
    connect.reset_mock()
    requests = {"job-definition": {"jobDefinitionName": "x"}, "array": {"jobName": "y"}}
    requests["warm-up"] = {"jobName": "first"}
    inputs = {"s3://bucket/a/inputs/z.zip": b"zip"}
    aws_jobs.submit_to_aws(requests, inputs, "eu-west-1", "me")
    assert {service.args[0] for service in connect.call_args_list} == {"batch", "s3"}
    assert {service.args[1:] for service in connect.call_args_list} == {("eu-west-1", "me")}
    assert connect().upload_fileobj.call_args.args[1:] == ("bucket", "a/inputs/z.zip")
    connect().register_job_definition.assert_called_once_with(jobDefinitionName="x")
    first, second = connect().submit_job.call_args_list
    assert first.kwargs == {"jobName": "first"}
    assert second.kwargs == {"jobName": "y", "dependsOn": [{"jobId": "7"}]}


@pytest.mark.parametrize("chained", [pytest.param(False, marks=pytest.mark.slow), True])
def test_inputs_mean_the_same_elsewhere(store: Bucket, batch: Path, chained: bool) -> None:
    """Items with the same fingerprints, whatever the paths were; the same inputs, the same bytes.
    The items of a shard are those of the scheduler, and only their files are unpacked."""
    (batch / "more").mkdir()
    (batch / "o2.xyz").rename(batch / "more" / "o2.xyz")
    (batch / "link.xyz").symlink_to("nh2.xyz")
    (batch / "charges.txt").write_text("0 0 9 0.5\n")
    head = HEAD.replace("basis", "# comment\nbasis") + 'memory = "2GB"\n'
    odd = (
        'name = "\\u007f \\"quoted\\" \\U0001F9EA"\nscf_from = "h2.xyz"\ncharge = 0\n'
        'scf-conv-tol = 1e-9\npoint_charges = "charges.txt"\n'
    )
    names = ("h2o", "h2", "link", "more/o2", "h2o")
    (batch / "batch.toml").write_text(head + items(*names) + odd)
    here = read_manifest(batch / "batch.toml")
    inputs = [read_input(item) for item in here.items]
    sent = pack(here, 3, chained=chained)
    assert pack(here, 3, chained=chained) == sent
    store.objects[f"{PREFIX}/inputs/x.zip"] = sent
    for shard in (None, (0, 2), (0, 3), (1, 3), (2, 3)):
        expected = inputs
        if shard in ((0, 3), (1, 3), (2, 3)):
            expected = [inputs[place] for place in of_shard(inputs, shard, chained=chained)]
        archive = unpacked_archive(f"{PLACE}/inputs/x.zip", 60.0, print, shard, chained=chained)
        with archive as (there, _, own):
            assert own == (expected is not inputs)
            assert [meaning(read_input(item)) for item in there.items] == [
                meaning(one) for one in expected
            ]
            files = {path.name for path in (there.root / "files").rglob("*.*")}
        wanted = {one.item.path.resolve().name for one in expected}
        if inputs[-1] in expected:
            wanted |= {"h2.xyz", "charges.txt"}
        assert files == wanted
    (batch / "h2o.xyz").write_text((batch / "h2o.xyz").read_text().replace("0.1173", "0.1174"))
    assert pack(read_manifest(batch / "batch.toml"), 3, chained=chained) != sent


def meaning(given: Input) -> tuple[str, str, int | None]:
    """What is the same elsewhere."""
    return given.item.name, given.fingerprint, given.item.options.memory


@pytest.mark.parametrize("name", ["../outside", ""])
def test_hostile_inputs(
    store: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Anything but an archive is rejected, and nothing is written outside the container's
    folder."""
    stream = io.BytesIO()
    if name:
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr(name, b"hostile")
    store.objects[f"{PREFIX}/inputs/bad.zip"] = stream.getvalue()
    monkeypatch.setenv("DFMP2_SCRATCH", str(tmp_path))
    with (
        pytest.raises(InputError),
        unpacked_archive(f"{PLACE}/inputs/bad.zip", 60.0, print),
    ):
        pass
    assert not list(tmp_path.iterdir())


def test_programs_are_shared(store: Bucket, tmp_path: Path) -> None:
    """Only complete entries, records last; a second host gets the programs compiled by the
    first."""
    entry = tmp_path / "here" / ("0123456789abcdef" * 2)
    entry.mkdir(parents=True)
    for name in ("nki_0.7.0.neff", "nki_0.7.0.json", "nki_0.7.0.json.4711.part"):
        (entry / name).write_text(name)
    place = store, f"{PLACE}/programs"
    Copies(*place, tmp_path / "here", PROGRAM).save()
    assert store.names() == {f"programs/{entry.name}/nki_0.7.0.{kind}" for kind in ("neff", "json")}
    assert [Path(key).suffix for key in store.sent] == [".neff", ".json"]
    there = Copies(*place, tmp_path / "there", PROGRAM)
    there.fetch(there.names())
    there.save()
    assert (tmp_path / "there" / entry.name / "nki_0.7.0.neff").read_text() == "nki_0.7.0.neff"
    assert len(store.sent) == 2


def test_a_checkpoint_stays_until_its_result_is_copied(
    store: Bucket, tmp_path: Path, monkeypatch
) -> None:
    """The result appears and the checkpoint vanishes while files are listed; the result is still
    copied first."""
    own = Copies(store, f"{PLACE}/results", tmp_path, RESULT)
    assert fetch_items(own, ["row"]) == 0
    (tmp_path / "row.h5.checkpoint").write_text("half")
    own.save()
    assert store.names() == {CHECKPOINT}

    def late(copies: Copies) -> list[str]:
        if looks.append(copies) or len(looks) == 2:
            (tmp_path / "row.h5").write_text("whole")
            (tmp_path / "row.h5.checkpoint").unlink()
        return real(copies)

    looks, real = [], Copies._files
    monkeypatch.setattr(Copies, "_files", late)
    own.save()
    assert store.names() == {CHECKPOINT, "results/row.h5"}
    own.save()
    assert store.removed == [{CHECKPOINT, "results/row.h5"}]
    assert store.names() == {"results/row.h5"}


def test_copies_are_tried_again_until_the_end() -> None:
    """A failure of S3 is reported and retried; a failure at the end, whatever its kind, ends the
    command with 75, so that another attempt computes what is missing."""

    expired = BackendUnavailable("ExpiredToken")
    copies = Mock()
    copies.save.side_effect = chain([expired, None], repeat(expired))
    heard: list[str] = []
    with recorded_error(Interrupted), kept([copies], 0.01, heard.append):
        wait_until(lambda: len(heard) >= 2)
    assert set(heard) == {"ExpiredToken; it is tried again"}


def test_warm_up_compiles_each_size_once(
    batch: Path, call: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line of `dfmp2 kernels warmup`, and the first failure ends it: 24 functions, 5
    (and 4) occupied; a smaller basis shares a program, and items of the host need none."""
    head = HEAD.replace("sto-3g", "cc-pvdz") + 'backend = "nki"\n'
    on_host = '[[item]]\nmolecule = "h2.xyz"\nbackend = "cpu"\n'
    smaller = '[[item]]\nmolecule = "h2o.xyz"\nname = "same"\nbasis = "6-31g"\n'
    (batch / "batch.toml").write_text(head + on_host + items("h2o", "nh2", "nah") + smaller)
    called: list[list[str]] = []
    ends = ["exit 6", "exit 0"]
    real = subprocess.Popen

    def fake(command: list[str], **settings) -> subprocess.Popen:
        called.append(command)
        return real(["sh", "-c", ends.pop()], **settings)

    monkeypatch.setattr("dfmp2.cli.batch_run.subprocess.Popen", fake)
    warm_up = ("batch", "run", "batch.toml", "--warm-up")
    assert call(*warm_up).code == 6
    command = ["-m", "dfmp2", "kernels", "warmup", "--lane", "nki", "--shape", "5,19,84"]
    assert [one[2:] for one in called] == [command, [*command, "--beta", "4,20"]]
    ends = [f"kill {os.getpid()}; exec sleep 60"]
    assert call(*warm_up).code == 75


# --- containers -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_was_submitted_goes_on_elsewhere_when_it_was_stopped(
    batch: Path, call: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS takes the requests as they are. A stopped container leaves its checkpoint in S3; the next
    one goes on from there, and then removes it."""
    pytest.importorskip("moto", reason="needs moto[batch,s3]")
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(EACH, "0")
    add_reference = FileCheckpoint.add_reference

    def preempted(checkpoint: FileCheckpoint, *what: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        checkpoint.stop_asked = True
        add_reference(checkpoint, *what)

    (batch / "row.xyz").write_text(MOLECULES["nh2"])
    write(batch, "row")
    roles = ("--job-role", ROLE, "--execution-role", ROLE)
    with simulated() as aws:
        sent = call(*BASE, *S3, "1", "--time", "2h", *roles, "--submit", "--json").json
        (job,) = aws.describe_jobs(jobs=[sent["submitted"]["array"]])["jobs"]
        command = job["container"]["command"][1:]
        place = Copies(connect("s3"), PLACE, batch / "copies", RESULT)
        with monkeypatch.context() as preempting:
            preempting.setattr(FileCheckpoint, "add_reference", preempted)
            assert call(*command).code == 75
        assert CHECKPOINT in place.names() and "results/row.h5" not in place.names()
        done = succeed(call(*command))
        assert "files of earlier attempts: 1" in done.err
        assert "results/row.h5" in place.names() and CHECKPOINT not in place.names()


def test_a_role_that_may_not_write_is_found_first(store: Bucket) -> None:
    """Before the inputs are read, which are not there."""
    store.protected = True
    with pytest.raises(ResourceError), unpacked_archive(f"{PLACE}/inputs/x.zip", 60.0, print):
        pass
