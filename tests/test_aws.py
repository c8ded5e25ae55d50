"""`dfmp2 batch submit --aws-batch`: requests as AWS takes them, arrays whose containers can be lost at any time."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dfmp2.errors import BackendUnavailable, InputError, Interrupted, ResourceError
from dfmp2.execution.arrays import Request
from dfmp2.execution.aws import INSTANCES, RETRY_RULES, Settings, make_jobs, read_mounts, submit
from dfmp2.execution.manifest import read_manifest
from dfmp2.execution.package import MANIFEST, pack, unpack
from dfmp2.execution.s3 import Location, S3Copies, Store, compile_programs
from dfmp2.execution.state import read_input
from dfmp2.trainium.launch.environment import LIBRARIES, TOOLS
from tests.aws import BUCKET, CREDENTIALS, PLACE, PREFIX, ROLE, Cloud, cloud
from tests.conftest import Finished, Runner, run_command, succeed
from tests.test_batch import chain, items, wait_for

HEAD = 'basis = "sto-3g"\nprecision = "fp64"\nthreads = 1\noutput = "out"\n'
BASE = ("batch", "submit", "batch.toml", "--aws-batch", "--queue", "queue", "--image", "repository/dfmp2:1")
SHARDS = 3


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("moto.server", reason="needs moto[batch,s3,server]")
    with cloud() as found:
        yield found


@pytest.fixture
def aws(server: Cloud, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """An empty AWS with a queue, and the variables that lead there."""
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    server.forget()
    server.queue()
    return server


@pytest.fixture
def batch(folder: Path) -> Path:
    """A manifest of three small molecules."""
    (folder / "batch.toml").write_text(HEAD + items("h2", "h2o", "nh2"))
    return folder


def request(**other) -> Request:
    """Two workers of one thread in three shards."""
    given = {"manifest": "batch.toml", "root": None, "output": None, "shards": SHARDS, "workers": 2, "threads": 1}
    given |= {"memory": None, "seconds": None, "chained": False}
    return Request(**{**given, **other})


def settings(**other) -> Settings:
    """Everything in S3."""
    given = {"queue": "queue", "image": "image", "place": Location(BUCKET, PREFIX), "mounts": read_mounts((), ())}
    return Settings(**{**given, **other})


def end(process: subprocess.Popen[str], seconds: float = 90.0) -> Finished:
    """What a container left behind."""
    out, err = process.communicate(timeout=seconds)
    return Finished(process.returncode, out, err)


# --- requests -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", INSTANCES)
def test_a_container_gets_all_of_its_instance(batch: Path, name: str) -> None:
    """Each device, all CPUs so that no other job comes beside it, the tools' folders, and a root it cannot write."""
    found = read_manifest(batch / "batch.toml")
    told = make_jobs(found, request(), settings(instance=INSTANCES[name])).definition["containerProperties"]
    devices = told["linuxParameters"]["devices"]
    chips = {"trn1.2xlarge": 1, "trn1.32xlarge": 16, "trn1n.32xlarge": 16}[name]  # AWS documentation
    assert [one["hostPath"] for one in devices] == [f"/dev/neuron{k}" for k in range(chips)]
    assert all(one["hostPath"] == one["containerPath"] and one["permissions"] == ["READ", "WRITE"] for one in devices)
    vcpus = {"trn1.2xlarge": "8"}.get(name, "128")
    assert {"type": "VCPU", "value": vcpus} in told["resourceRequirements"]
    variables = {one["name"]: one["value"] for one in told["environment"]}
    assert variables["PATH"].split(":")[0] == "/opt/dfmp2/bin"
    assert {TOOLS, "/usr/bin", "/bin"} <= set(variables["PATH"].split(":"))
    assert variables["LD_LIBRARY_PATH"] == LIBRARIES
    assert variables["NEURON_PLATFORM_TARGET_OVERRIDE"] == "trn1"
    assert "--auto-cast=none" in variables["NEURON_CC_FLAGS"]
    assert "--retry_failed_compilation" in variables["NEURON_CC_FLAGS"]
    assert "NEURON_RT_VISIBLE_CORES" not in variables  # each worker gets its own
    assert told["readonlyRootFilesystem"] and not told["privileged"] and told["linuxParameters"]["initProcessEnabled"]
    written = [point["containerPath"] for point in told["mountPoints"]]
    for variable in ("HOME", "TMPDIR", "DFMP2_SCRATCH", "DFMP2_NEFF_CACHE", "XDG_CACHE_HOME"):
        assert any(Path(variables[variable]).is_relative_to(place) for place in written), variable


def decide(reason: str = "", status: str = "Essential container in task exited", code: int | None = None) -> str:
    """What AWS Batch does: the first rule of which all patterns match, else another attempt (EvaluateOnExit)."""
    seen = {"onReason": reason, "onStatusReason": status, "onExitCode": "" if code is None else str(code)}
    for rule in RETRY_RULES:
        patterns = {key: text for key, text in rule.items() if key != "action"}
        if all(seen[key].startswith(p[:-1]) if p.endswith("*") else seen[key] == p for key, p in patterns.items()):
            return str(rule["action"])
    return "RETRY"


@pytest.mark.parametrize(
    ("expected", "seen"),
    [
        ("RETRY", {"code": 75}),
        ("RETRY", {"status": "Host EC2 (instance i-0123456789abcdef0) terminated."}),
        ("RETRY", {"status": "Task failed to start", "reason": "CannotPullContainerError: timeout"}),
        ("EXIT", {"code": 9}),  # some molecules failed: they would fail again
        *(("EXIT", {"code": code}) for code in (1, 2, 3, 6, 7, 130)),
        ("EXIT", {"code": 137, "reason": "OutOfMemoryError: Container killed due to memory usage"}),
        ("EXIT", {"status": "Job attempt duration exceeded timeout"}),
    ],
)
def test_what_is_tried_again(expected: str, seen: dict) -> None:
    """What was stopped or lost its host; everything else would end the same way."""
    assert len(RETRY_RULES) <= 5
    assert decide(**seen) == expected


def test_definitions_are_named_by_what_is_in_them(batch: Path) -> None:
    """The same settings give the same name, and whatever changes gives another; one shard is a job without array."""
    found = read_manifest(batch / "batch.toml")
    assert "arrayProperties" not in make_jobs(found, request(shards=1), settings()).array
    assert make_jobs(found, request(shards=10_000), settings()).array["arrayProperties"] == {"size": 10_000}

    def name(given: Request, own: Settings) -> str:
        return make_jobs(found, given, own).definition["jobDefinitionName"]

    same = name(request(), settings())
    assert name(request(shards=2), settings(queue="other", place=Location(BUCKET, "other"))) == same
    others = [settings(image="other"), settings(job_role=ROLE), settings(attempts=3)]
    others += [settings(instance=INSTANCES["trn1.2xlarge"]), settings(mounts=read_mounts(("/fsx",), ()))]
    names = {name(request(), own) for own in others} | {name(request(memory=2**31), settings()), same}
    assert len(names) == len(others) + 2


@pytest.mark.parametrize(
    ("given", "own", "said"),
    [
        ({"workers": 3}, {"instance": INSTANCES["trn1.2xlarge"]}, "a core serves one process: use at most 2"),
        ({"workers": 2, "threads": 5}, {"instance": INSTANCES["trn1.2xlarge"]}, "need 10 virtual CPUs"),
        ({"memory": 10**9}, {"instance": INSTANCES["trn1.2xlarge"]}, "954 MiB are too few"),
        ({"memory": 40 * 2**30}, {"instance": INSTANCES["trn1.2xlarge"]}, "can have 30000 MiB"),
        ({"seconds": 30}, {}, "no limits below 60 s"),
        ({"shards": 10_001}, {}, "at most 10000"),
        ({"output": "elsewhere"}, {}, "results go to s3://"),
        ({}, {"place": None}, "name its file system with --mount"),
        ({}, {"programs": "/fsx/programs"}, "a folder below --mount or --efs"),
    ],
)
def test_what_does_not_fit_is_refused(batch: Path, given: dict, own: dict, said: str) -> None:
    """What AWS would refuse, or leave waiting for ever."""
    (batch / "batch.toml").write_text(HEAD + 'backend = "nki"\n' + items("h2"))
    with pytest.raises(InputError, match=said):
        make_jobs(read_manifest(batch / "batch.toml"), request(**given), settings(**own))


def test_mounted_file_system(batch: Path) -> None:
    """Without S3 the containers run `dfmp2 batch run` itself, with the paths that the files have here."""
    (batch / "batch.toml").write_text(HEAD + 'backend = "nki-xla"\n' + items("h2"))
    mounts = read_mounts((f"/fsx/home:{batch}", "/mnt/nvme:/work"), ())
    jobs = make_jobs(read_manifest(batch / "batch.toml"), request(shards=1), settings(place=None, mounts=mounts))
    told = jobs.array["containerOverrides"]
    assert told["command"][:6] == ["dfmp2", "batch", "run", f"{batch}/batch.toml", "--output", f"{batch}/out"]
    variables = {one["name"]: one["value"] for one in told["environment"]}
    assert variables["NEURON_COMPILE_CACHE_URL"] == f"{batch}/dfmp2-programs/xla"
    volumes = {one["host"].get("sourcePath") for one in jobs.definition["containerProperties"]["volumes"]}
    assert volumes == {"/fsx/home", "/mnt/nvme"} and jobs.package is None
    assert jobs.warm_up is not None
    command = jobs.warm_up["containerOverrides"]["command"]
    assert command == [*told["command"][:6], "--warm-up", "trn1"]


# --- the command line -----------------------------------------------------------------------------------------------


def test_dry_run_needs_neither_boto3_nor_credentials(
    batch: Path, call: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would be sent is shown and written, in the form that `aws batch ... --cli-input-json` reads."""
    monkeypatch.setitem(sys.modules, "boto3", None)
    for name in CREDENTIALS:
        monkeypatch.delenv(name, raising=False)
    arguments = (*BASE, "--s3", PLACE, "--shards", "3", "--write", "sent")
    shown = succeed(call(*arguments)).out
    assert "nothing was submitted" in shown
    written = {path.name: json.loads(path.read_text()) for path in (batch / "sent").glob("*.json")}
    assert set(written) == {"job-definition.json", "array.json"}
    inputs = next((batch / "sent").glob("*.tar"))
    assert f"{PLACE}/inputs/{inputs.name}" in written["array.json"]["containerOverrides"]["command"]
    assert len(read_manifest(unpack(inputs, batch / "unpacked")).items) == 3
    assert written["array.json"]["jobDefinition"] == written["job-definition.json"]["jobDefinitionName"]
    found = succeed(call(*arguments, "--json")).json
    assert found["submitted"] is None and found["requests"]["array"] == written["array.json"]
    done = call(*arguments, "--submit")
    assert done.code == 6 and "pip install 'dfmp2[aws]'" in done.message


def test_submission(aws: Cloud, batch: Path, call: Runner) -> None:
    """An array job with the roles, the attempts and the limit that were asked for; its definition is used again."""
    arguments = (*BASE, "--s3", PLACE, "--shards", "3", "--time", "2h", "--job-role", ROLE, "--execution-role", ROLE)
    done = succeed(call(*arguments, "--submit", "--json")).json
    job = aws.batch.describe_jobs(jobs=[done["submitted"]["array"]])["jobs"][0]
    assert job["arrayProperties"]["size"] == SHARDS
    definition = aws.batch.describe_job_definitions()["jobDefinitions"]
    assert len(definition) == 1 and definition[0]["jobDefinitionArn"] == job["jobDefinition"]
    assert definition[0]["timeout"] == {"attemptDurationSeconds": 7200}
    strategy = definition[0]["retryStrategy"]
    taken = [{**rule, "action": rule["action"].upper()} for rule in strategy["evaluateOnExit"]]  # AWS ignores case
    assert strategy["attempts"] == 10 and taken == list(RETRY_RULES)
    told = definition[0]["containerProperties"]
    assert told["jobRoleArn"] == told["executionRoleArn"] == ROLE
    inputs = aws.names()
    assert len(inputs) == 1
    again = succeed(call(*arguments, "--submit")).out
    assert "there already" in again and aws.names() == inputs
    assert len(aws.batch.describe_job_definitions()["jobDefinitions"]) == 1
    assert "results: aws s3 sync" in again


def test_warm_up_comes_before_the_array(aws: Cloud, batch: Path, call: Runner) -> None:
    """Where a backend launches compiled programs, the array waits for the job that compiles them."""
    (batch / "batch.toml").write_text(HEAD + 'backend = "nki"\n' + items("h2", "h2o"))
    sent: list[dict] = []
    aws.batch.meta.events.register("provide-client-params.batch.SubmitJob", lambda params, **_: sent.append(params))
    jobs = make_jobs(read_manifest(batch / "batch.toml"), request(shards=2), settings())
    done = submit(jobs, aws.batch, Store(aws.s3))
    first, second = sent
    assert first["containerOverrides"]["command"][-2:] == ["--warm-up", "trn1"] and "arrayProperties" not in first
    assert second["dependsOn"] == [{"jobId": done.warm_up}] and second["arrayProperties"] == {"size": 2}
    assert f"{PLACE}/programs" in first["containerOverrides"]["command"]
    cache = {"name": "NEURON_COMPILE_CACHE_URL", "value": f"{PLACE}/programs-xla"}
    assert cache in first["containerOverrides"]["environment"] and cache in second["containerOverrides"]["environment"]
    assert make_jobs(read_manifest(batch / "batch.toml"), request(), settings(warm=False)).warm_up is None


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--s3", PLACE, "--queue", "nobody"), 3, "there is no such job queue in us-east-1"),
        (("--s3", "s3://no-such-bucket/x"), 3, "no-such-bucket"),
        (("--s3", "bucket/x"), 3, "expected s3://BUCKET/PREFIX"),
        *((("--s3", f"s3://{place}"), 3, "expected s3://BUCKET/PREFIX") for place in ("", "Upper/x", "a/x", "b ucket")),
        *((("--s3", f"s3://molecules/{key}"), 3, "expected s3://BUCKET/PREFIX") for key in ("../x", "a//b")),
        (("--s3", PLACE, "--job-role", "batch"), 3, "expected arn:aws:iam::ACCOUNT:role/NAME"),
        (("--s3", PLACE, "--mount", "fsx"), 3, "both absolute paths"),
        (("--s3", PLACE, "--efs", "fs-1"), 3, "expected ID:CONTAINER"),
        (("--s3", PLACE, "--profile", "nobody"), 6, "no AWS credentials"),
        ((), 3, "name where inputs and results are"),
        (("--s3", PLACE, "--instance", "p5.48xlarge"), 2, "trn1.2xlarge"),
        (("--s3", PLACE, "--attempts", "11"), 2, "11"),
        (("--s3", PLACE, "--shards", "4"), 3, "use at most that many shards"),
        (("--s3", PLACE, "--partition", "cpu"), 2, "--partition belongs to --slurm"),
    ],
)
def test_bad_input(aws: Cloud, batch: Path, call: Runner, arguments: tuple, code: int, said: str) -> None:
    """One line that says what is wrong, and no job."""
    done = call(*BASE, "--shards", "2", "--submit", *arguments)
    assert done.code == code and said in done.message
    assert not aws.batch.list_jobs(jobQueue="queue", jobStatus="SUCCEEDED")["jobSummaryList"]


def test_without_credentials_or_region(batch: Path, call: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code 6, and where to get them."""
    for name in CREDENTIALS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(batch / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(batch / "none"))
    done = call(*BASE, "--shards", "2", "--submit", "--s3", PLACE)
    assert done.code == 6 and "no AWS region" in done.message and "--region" in done.message
    done = call(*BASE, "--shards", "2", "--submit", "--s3", PLACE, "--region", "us-east-1")
    assert done.code == 6 and "aws configure" in done.message


@pytest.mark.parametrize(
    ("types", "other", "said"),
    [
        (("c7i.4xlarge", "trn1.32xlarge"), {}, "needs 1 Neuron devices"),
        (("trn1",), {"maxvCpus": 4}, "at most 4 virtual CPUs and a job needs 8"),
        ((), {"type": "FARGATE"}, "is of Fargate"),
    ],
)
def test_queues_in_which_jobs_would_wait_for_ever(
    aws: Cloud, batch: Path, call: Runner, types: tuple, other: dict, said: str
) -> None:
    """Devices, CPUs and kind of the compute environment are looked at first."""
    (batch / "batch.toml").write_text(HEAD + 'backend = "nki"\n' + items("h2", "h2o"))
    name = aws.queue("other", types=types, **other)
    done = call(*BASE, "--shards", "2", "--submit", "--s3", PLACE, "--queue", name)
    assert done.code == 3 and said in done.message


def test_closed_queue_and_a_job_that_is_there(aws: Cloud, batch: Path, call: Runner) -> None:
    """Neither is sent to: AWS would refuse the first, and both jobs would compute the same."""
    jobs = make_jobs(read_manifest(batch / "batch.toml"), request(), settings())
    active = {"jobName": jobs.array["jobName"], "jobId": "4711", "status": "RUNNABLE"}

    def answer(**_: object) -> tuple[SimpleNamespace, dict]:
        return SimpleNamespace(status_code=200), {"jobSummaryList": [active]}

    aws.batch.meta.events.register("before-call.batch.ListJobs", answer)
    try:
        with pytest.raises(InputError, match="job 4711"):
            submit(jobs, aws.batch, Store(aws.s3))
    finally:
        aws.batch.meta.events.unregister("before-call.batch.ListJobs", answer)
    aws.batch.update_job_queue(jobQueue="queue", state="DISABLED")
    done = call(*BASE, "--shards", "2", "--submit", "--s3", PLACE)
    assert done.code == 3 and "DISABLED" in done.message
    assert not aws.names()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("AccessDenied", ResourceError),
        ("ExpiredToken", BackendUnavailable),
        ("NoSuchBucket", InputError),
        ("SlowDown", ResourceError),
    ],
)
def test_what_s3_answers_becomes_an_error_with_its_code(aws: Cloud, code: str, kind: type[Exception]) -> None:
    """By what the user does next."""
    from botocore.exceptions import ClientError

    def answer(**_: object) -> None:
        raise ClientError({"Error": {"Code": code, "Message": "told"}}, "PutObject")

    aws.s3.meta.events.register("before-call.s3.PutObject", answer)
    try:
        with pytest.raises(kind, match=code):
            Store(aws.s3).write(b"", Location(BUCKET, "x"))
    finally:
        aws.s3.meta.events.unregister("before-call.s3.PutObject", answer)


# --- what is sent ---------------------------------------------------------------------------------------------------


def test_package_means_the_same_elsewhere(batch: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Items with the same fingerprints, whatever the paths were; the same inputs, the same bytes."""
    (batch / "more").mkdir()
    (batch / "more" / "o2.xyz").write_text((batch / "o2.xyz").read_text())
    (batch / "link.xyz").symlink_to("nh2.xyz")
    text = HEAD.replace("basis", "# comment\nbasis") + 'memory = "2GB"\n' + items("h2o", "more/o2", "link")
    text += 'name = "\\u007f \\"quoted\\" \\U0001F9EA"\nscf_from = "h2.xyz"\ncharge = 0\nscf-conv-tol = 1e-9\n'
    (batch / "batch.toml").write_text(text)
    here = read_manifest(batch / "batch.toml")
    sent = pack(here)
    assert pack(here).content == sent.content
    archive = tmp_path_factory.mktemp("there") / "inputs.tar"
    archive.write_bytes(sent.content)
    there = read_manifest(unpack(archive, archive.parent / "batch"))
    assert [item.name for item in there.items] == [item.name for item in here.items]
    assert [read_input(item).fingerprint for item in there.items] == [
        read_input(item).fingerprint for item in here.items
    ]
    assert there.items[0].options == here.items[0].options
    (batch / "h2o.xyz").write_text((batch / "h2o.xyz").read_text().replace("0.1173", "0.1174"))
    assert pack(read_manifest(batch / "batch.toml")).name != sent.name


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.REGTYPE, tarfile.CHRTYPE])
def test_hostile_package(tmp_path: Path, kind: bytes) -> None:
    """Links, devices and names that lead out are refused, and nothing is written there."""
    entry = tarfile.TarInfo(MANIFEST if kind != tarfile.REGTYPE else "../outside")
    entry.type, entry.linkname = kind, "/etc/passwd"
    with tarfile.open(tmp_path / "bad.tar", "w") as archive:
        archive.addfile(entry, io.BytesIO())
    with pytest.raises(InputError, match="no package of inputs"):
        unpack(tmp_path / "bad.tar", tmp_path / "batch")
    assert not (tmp_path / "outside").exists() and not (tmp_path / "batch" / MANIFEST).exists()


def copies(aws: Cloud, folder: Path, programs: bool = False) -> S3Copies:
    """Copies of a folder with results and compiled programs."""
    place = Location(BUCKET, PREFIX)
    return S3Copies(Store(aws.s3), place, folder, place / "programs" if programs else None, folder / "cache", 60.0)


def test_programs_are_shared(aws: Cloud, tmp_path: Path) -> None:
    """Whole entries only, records last; a second host gets what the first has compiled."""
    here, there = tmp_path / "here", tmp_path / "there"
    entry = here / "cache" / ("0123456789abcdef" * 2)
    entry.mkdir(parents=True)
    for name in ("nki_0.7.0.neff", "nki_0.7.0.json", "nki_0.7.0.json.4711.part"):
        (entry / name).write_text(name)
    (here / "cache" / "xla").mkdir()
    (here / "cache" / "xla" / "other").write_text("not ours")
    sent: list[str] = []
    aws.s3.meta.events.register("provide-client-params.s3.PutObject", lambda params, **_: sent.append(params["Key"]))
    copies(aws, here, programs=True).save(now=True)
    assert aws.names() == {f"programs/{entry.name}/nki_0.7.0.{kind}" for kind in ("neff", "json")}
    assert [Path(key).suffix for key in sent] == [".neff", ".json"]
    second = copies(aws, there, programs=True)
    second.fetch_programs()
    second.save(now=True)
    assert (there / "cache" / entry.name / "nki_0.7.0.neff").read_text() == "nki_0.7.0.neff"
    assert len(sent) == 2


def test_a_checkpoint_stays_until_its_result_is_copied(aws: Cloud, tmp_path: Path, monkeypatch) -> None:
    """The result appears after it was looked for, and the checkpoint goes: the result is copied first all the same."""
    own = copies(aws, tmp_path)
    own.fetch(["row"])
    (tmp_path / "row.h5.checkpoint").write_text("half")
    own.save(now=False)
    assert aws.names() == set()  # not due
    own.save(now=True)
    assert aws.names() == {CHECKPOINT}
    aws.s3.meta.events.register("provide-client-params.s3.DeleteObject", lambda **_: seen.append(aws.names()))
    seen: list[set[str]] = []
    bring = S3Copies._bring

    def late(self: S3Copies, name: str, suffix: str) -> None:
        bring(self, name, suffix)
        if suffix == ".h5" and not (tmp_path / "row.h5").exists():
            (tmp_path / "row.h5").write_text("whole")
            (tmp_path / "row.h5.checkpoint").unlink()

    monkeypatch.setattr(S3Copies, "_bring", late)
    own.save(now=True)
    assert seen == [{CHECKPOINT, "results/row.h5"}] and aws.names() == {"results/row.h5"}


def test_warm_up_compiles_each_size_once(batch: Path, monkeypatch) -> None:
    """The command line of `dfmp2 kernels warmup`, and the first failure ends it."""
    (batch / "batch.toml").write_text(HEAD + 'backend = "nki"\n' + items("h2o", "nh2", "nah"))
    called: list[list[str]] = []
    codes = [6, 0]
    real = subprocess.Popen

    def fake(command: list[str], **settings) -> subprocess.Popen:
        called.append(command)
        return real(["sh", "-c", f"exit {codes.pop()}"], **settings)

    monkeypatch.setattr("dfmp2.execution.s3.subprocess.Popen", fake)
    found = read_manifest(batch / "batch.toml")
    assert compile_programs(found, "trn1", None, lambda: 0) == 6
    assert len(called) == 2 and called[0] != called[1]
    for command in called:
        assert command[2:10] == ["-m", "dfmp2", "kernels", "warmup", "--lane", "nki", "--target", "trn1"]
        assert "--shape" in command
    codes = [0]
    with pytest.raises(Interrupted):
        compile_programs(found, "trn1", None, lambda: 1)


# --- containers -----------------------------------------------------------------------------------------------------


def test_every_container_computes_its_shard(aws: Cloud, batch: Path, call: Runner, tmp_path: Path) -> None:
    """The energies of single runs, in S3 under the names that `batch status` knows; what fails, until it is mended."""
    (batch / "h2.xyz").write_text("2\n\nH 0 0 0\nQ 0 0 0.74\n")
    job = succeed(call(*BASE, "--s3", PLACE, "--shards", "2", "--submit", "--json")).json["submitted"]["array"]
    started = [aws.container(job, index, tmp_path / f"host{index}") for index in range(2)]
    done = [end(process) for process in started]
    assert sorted(one.code for one in done) == [0, 9], done
    assert json.loads(aws.body("results/h2.error.json"))["code"] == 3
    (batch / "h2.xyz").write_text("2\n\nH 0 0 0\nH 0 0 0.74\n")
    job = succeed(call(*BASE, "--s3", PLACE, "--shards", "2", "--submit", "--json")).json["submitted"]["array"]
    done = [end(aws.container(job, index, tmp_path / f"again{index}")) for index in range(2)]
    assert [one.code for one in done] == [0, 0] and sum("(0 of them before)" in one.out for one in done) <= 1, done
    results = {name for name in aws.names() if name.startswith("results/")}
    assert results == {f"results/{name}.h5" for name in ("h2", "h2o", "nh2")}
    assert {name for name in aws.names() if name.startswith("shards/")} == {"shards/0-of-2.json", "shards/1-of-2.json"}
    note = json.loads(aws.body("shards/1-of-2.json"))
    assert (note["status"], note["exit_code"], note["job"]) == ("ended", 0, job)
    (batch / "fetched").mkdir()
    for name in results:
        (batch / "fetched" / name.removeprefix("results/")).write_bytes(aws.body(name))
    status = succeed(call("batch", "status", "batch.toml", "--output", "fetched", "--json")).json
    assert status["complete"] == 3
    alone = ("run", "nh2.xyz", "--basis", "sto-3g", "--precision", "fp64", "--threads", "1", "--json")
    stored = succeed(call("show", "fetched/nh2.h5", "--json")).json
    assert stored["mp2_total_energy"] == succeed(call(*alone)).json["mp2_total_energy"]


@pytest.fixture
def long(aws: Cloud, batch: Path, call: Runner) -> tuple[str, float]:
    """A job that takes some seconds, and its energy."""
    (batch / "row.xyz").write_text(chain(6))
    (batch / "batch.toml").write_text(HEAD.replace("sto-3g", "cc-pvtz") + items("row"))
    arguments = (*BASE, "--s3", PLACE, "--shards", "1", "--copy-every", "1", "--submit", "--json")
    job = succeed(call(*arguments)).json["submitted"]["array"]
    done = succeed(call("run", "row.xyz", "--basis", "cc-pvtz", "--precision", "fp64", "--threads", "1", "--json"))
    return job, done.json["mp2_total_energy"]


CHECKPOINT = "results/row.h5.checkpoint"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGTERM", "host lost"])
def test_a_stopped_container_goes_on_elsewhere(aws: Cloud, long: tuple[str, float], tmp_path: Path, how: str) -> None:
    """From its checkpoint in S3, to the same energy to the last bit; the last copy takes the checkpoint away."""
    job, energy = long
    first = aws.container(job, None, tmp_path / "first", DFMP2_CHECKPOINT_SECONDS="0.2")
    wait_for(lambda: CHECKPOINT in aws.names())
    if how == "SIGTERM":
        first.send_signal(signal.SIGTERM)
    else:
        first.kill()
    begin = time.monotonic()
    done = end(first)
    if how != "host lost":
        assert done.code == 75, done.err
        assert time.monotonic() - begin < 20  # AWS kills after 30 s
        assert json.loads(aws.body("shards/0-of-1.json"))["exit_code"] == 75
    assert "results/row.h5" not in aws.names()
    second = end(aws.container(job, None, tmp_path / "second", AWS_BATCH_JOB_ATTEMPT="2"))
    assert second.code == 0 and "files of earlier attempts: 1" in second.err, second.err
    assert "results/row.h5" in aws.names() and CHECKPOINT not in aws.names()
    (tmp_path / "row.h5").write_bytes(aws.body("results/row.h5"))
    found = succeed(run_command("show", "row.h5", "--json", cwd=tmp_path)).json
    assert found["mp2_total_energy"] == energy
    assert json.loads(aws.body("shards/0-of-1.json"))["attempt"] == "2"


@pytest.mark.slow
def test_stopped_before_it_began(aws: Cloud, batch: Path, call: Runner, tmp_path: Path) -> None:
    """SIGTERM while inputs are fetched: code 75 and nothing but a note in S3."""
    job = succeed(call(*BASE, "--s3", PLACE, "--shards", "1", "--submit", "--json")).json["submitted"]["array"]
    first = aws.container(job, None, tmp_path / "first")
    wait_for(lambda: "shards/0-of-1.json" in aws.names())
    first.send_signal(signal.SIGTERM)
    assert end(first).code == 75
    assert not list((tmp_path / "first").glob("dfmp2-batch-*"))


def test_a_role_that_may_not_write_is_found_first(aws: Cloud, batch: Path, call: Runner, tmp_path: Path) -> None:
    """Before anything is computed: the bucket is gone, code 3."""
    job = succeed(call(*BASE, "--s3", PLACE, "--shards", "1", "--submit", "--json")).json["submitted"]["array"]
    for key in aws.names():
        aws.s3.delete_object(Bucket=BUCKET, Key=f"{PREFIX}/{key}")
    aws.s3.delete_bucket(Bucket=BUCKET)
    done = end(aws.container(job, None, tmp_path / "first"))
    assert done.code == 3 and "NoSuchBucket" in done.err and "Traceback" not in done.err


@pytest.mark.skipif(not Path("/proc/1").exists(), reason="needs Linux")
def test_batch_as_the_first_process_of_a_container(batch: Path) -> None:
    """Its workers do not take it for the process that adopts orphans."""
    probe = subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("this user may not make process namespaces")
    (batch / "batch.toml").write_text(HEAD + items("h2"))
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-m", "dfmp2", "batch", "run", "batch.toml"],
        cwd=batch,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
