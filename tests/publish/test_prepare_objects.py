"""Tests that `prepare` writes the same bytes to object stores as to disk and publishes datasets atomically."""

import errno
import hashlib
import itertools
import json
import pathlib
from typing import Any, Callable, Iterator, NamedTuple

import pyarrow.parquet as pq
import pytest
from apache_beam.io.filesystems import FileSystems

from beam_pipelines.__main__ import main
from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.elements.plan import Plan
from beam_pipelines.errors import RunError
from beam_pipelines.publish import publishing as publish
from beam_pipelines.runners.jobs import parse_pipeline_options
from beam_pipelines.shuffle import global_shuffle
from beam_pipelines.sources.listing import list_images
from beam_pipelines.storage import lease
from beam_pipelines.storage.lease import LEASE
from beam_pipelines.storage.working_directory import MARKER
from beam_pipelines.storage.object_stores import retries
from beam_pipelines.storage.object_stores.object_store import ObjectStore
from beam_pipelines.storage.files import files_at
from foreign_leases import foreign_lease, write_lease
from made_images import encode, noise, write_class_folders
from object_stores import StoreServer, connected_to, fault_proxy, shared_server, upload_files
from tf_input.dataset_format import MANIFEST, RUN, Manifest

pytestmark = pytest.mark.slow


# For tests that do not depend on the kind of the store. About half of these tests use each kind.
S3_ONLY = pytest.mark.parametrize("server", ["s3"], indirect=True)
GS_ONLY = pytest.mark.parametrize("server", ["gs"], indirect=True)


class WorkerKilled(Exception):
    """An error that simulates a killed worker."""


@pytest.fixture(scope="module", params=["s3", "gs"])
def server(request) -> Iterator[StoreServer]:
    with connected_to(shared_server(request.param)) as server:
        yield server


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("source")
    write_class_folders(folder, {"ant": 9, "bee": 6})
    (folder / "bee" / "flat.bmp").write_bytes(encode(noise(), "BMP"))
    (folder / "bee" / "large.jpg").write_bytes(encode(noise(2, 300, 400), "JPEG"))
    # The key of this image is not among the 16 keys that are checked first.
    (folder / "bee" / "bad4.jpg").write_bytes(b"<html>")
    return folder


@pytest.fixture(scope="module")
def prepared(source, tmp_path_factory) -> dict[str, str]:
    """Returns the SHA-256 digest of each file in the dataset that `prepare` writes to disk."""
    output = tmp_path_factory.mktemp("prepared") / "out"
    assert prepare(str(source), str(output)) == 0
    return digest({str(path.relative_to(output)): path.read_bytes() for path in output.rglob("*") if path.is_file()})


@pytest.fixture(scope="module")
def old(source, tmp_path_factory) -> dict[str, bytes]:
    """Returns the files of an older dataset. The tests replace this dataset."""
    output = tmp_path_factory.mktemp("old") / "out"
    assert prepare(str(source), str(output), *ONE_SHARD, "--seed=5") == 0
    return {str(path.relative_to(output)): path.read_bytes() for path in output.rglob("*") if path.is_file()}


@pytest.fixture
def bucket(server, source) -> str:
    """Returns a new bucket that contains the source images in `in/`."""
    return upload_files(server, {f"in/{path.relative_to(source)}": path.read_bytes() for path in source.rglob("*.*")}, folder="")


# The test servers answer a few hundred requests a second. Each shard needs a dozen requests, and each image needs two.
NUM_SHARDS = 3
ONE_SHARD = ("--splits=train=1", "--num_shards=1")


def prepare(source: str, output: str, *options: str) -> int:
    call = ["prepare", "--input", source, "--output", output, "--name=made", "--max_bad_fraction=0.1", *options]
    return main(call if "--num_shards=1" in options else [*call, f"--num_shards={NUM_SHARDS}"])


def open_store(server: StoreServer, path: str) -> ObjectStore:
    FileSystems.set_options(parse_pipeline_options(server.flags))
    return files_at(path)


def write_objects(server: StoreServer, folder: str, files: dict[str, bytes]) -> None:
    store = open_store(server, folder)
    for name, data in files.items():
        store.write(f"{folder}/{name}", data)


def objects(server: StoreServer, folder: str) -> dict[str, bytes]:
    store = open_store(server, folder)
    return {name: store.read(f"{folder}/{name}") for name, _ in store.list(folder)}


def digest(files: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items()) if name != RUN}


def test_output_in_store_has_the_same_bytes_as_on_disk(server, bucket, prepared, capsys):
    assert prepare(f"{bucket}/in", f"{bucket}/out", *server.flags) == 0
    printed = capsys.readouterr().out
    assert f"dataset:      {bucket}/out" in printed and "dead letters: 1 of 18 inputs" in printed
    assert digest(objects(server, f"{bucket}/out")) == prepared
    assert not objects(server, f"{bucket}/out.incomplete")


@S3_ONLY
def test_groups_duplicates_if_spool_is_in_store(server, source, bucket, tmp_path, capfd):
    assert prepare(str(source), str(tmp_path / "out"), "--duplicates=group") == 0
    assert prepare(f"{bucket}/in", f"{bucket}/out", "--duplicates=group", *server.flags) == 0
    on_disk = {str(path.relative_to(tmp_path / "out")): path for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert digest(objects(server, f"{bucket}/out")) == digest({name: path.read_bytes() for name, path in on_disk.items()})
    assert main(["leaks", f"{bucket}/out", *server.flags]) == 0 and "near-duplicate pairs: 1, in different splits: 0 " in capfd.readouterr().out


@S3_ONLY
def test_class_names_are_read_from_store_given_by_options(server, source, tmp_path, capfd):
    names = upload_files(server, {"names.txt": b"bee\nant\ncow\n"}, "")
    nowhere = ["--s3_endpoint_url=http://127.0.0.1:9", "--store_timeout=0.2"]
    for option in (f"--label_names={names}/names.txt", f"--label_names=label={names}/names.txt", f"--label_names_from={names}/old"):
        FileSystems.set_options(parse_pipeline_options([]))  # A command begins without options.
        assert prepare(str(source), str(tmp_path / "out"), option, "--estimate", *server.flags, *nowhere) == 1
        assert "http://127.0.0.1:9 for 0.2 s" in capfd.readouterr().err
    FileSystems.set_options(parse_pipeline_options([]))
    assert prepare(str(source), str(tmp_path / "out"), f"--label_names={names}/names.txt", *server.flags) == 0
    assert (tmp_path / "out" / "label.labels.txt").read_text() == "bee\nant\ncow\n"


@GS_ONLY
def test_unchecked_images_replace_older_dataset(server, bucket, old, source, tmp_path):
    assert prepare(str(source), str(tmp_path / "out"), "--check=none") == 0
    write_objects(server, f"{bucket}/out", old)
    assert prepare(f"{bucket}/in", f"{bucket}/out", "--check=none", "--overwrite", *server.flags) == 0
    on_disk = {str(path.relative_to(tmp_path / "out")): path for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert digest(objects(server, f"{bucket}/out")) == digest({name: path.read_bytes() for name, path in on_disk.items()})


@S3_ONLY
def test_estimate_writes_nothing_to_store(server, bucket, capsys):
    assert main(["prepare", f"--input={bucket}/in", f"--output={bucket}/out", "--estimate", *server.flags]) == 0
    assert "images:    18 in 2 classes" in capsys.readouterr().out
    assert not objects(server, f"{bucket}/out")


@GS_ONLY
def test_overwrite_replaces_only_with_complete_dataset(server, bucket, old, prepared, capsys, monkeypatch):
    out = f"{bucket}/out"
    write_objects(server, out, old)
    assert prepare(f"{bucket}/in", out, *server.flags) == 2
    assert f"--output={out} exists. " in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr("beam_pipelines.publish.publishing.publish", lambda *unused: 1 / 0)
        with pytest.raises(Exception, match="division by zero"):
            prepare(f"{bucket}/in", out, "--overwrite", *server.flags)
    assert objects(server, out) == old
    capsys.readouterr()
    assert prepare(f"{bucket}/in", out, "--overwrite", *server.flags) == 2
    assert f"--output={out}: {NUM_SHARDS} of {NUM_SHARDS} shards are complete. " in capsys.readouterr().err
    assert prepare(f"{bucket}/in", out, "--overwrite", "--restart", *server.flags) == 0
    assert digest(objects(server, out)) == prepared
    assert not objects(server, f"{out}.incomplete")


@GS_ONLY
def test_failed_run_leaves_no_dataset_and_can_be_resumed(server, bucket, prepared, capsys):
    """An empty split fails the run before shards are written. Too many dead letters fail the run at the end."""
    call = ["prepare", f"--input={bucket}/in", f"--output={bucket}/out", "--name=made", f"--num_shards={NUM_SHARDS}", *server.flags]
    assert main([*call, "--splits=train=0.999999,test=0.000001"]) == 2
    assert "split 'test' would be empty" in capsys.readouterr().err
    assert not objects(server, f"{bucket}/out") and not objects(server, f"{bucket}/out.incomplete")
    assert main([*call, "--max_bad_fraction=0"]) == 2
    assert "1 of 18 inputs " in capsys.readouterr().err
    assert MANIFEST not in objects(server, f"{bucket}/out")
    assert main([*call, "--max_bad_fraction=0.1", "--resume"]) == 0
    assert digest(objects(server, f"{bucket}/out")) == prepared and not objects(server, f"{bucket}/out.incomplete")


@S3_ONLY
def test_reports_another_run_that_writes_to_the_same_output(server, bucket, prepared, capsys):
    out = f"{bucket}/out"
    write_lease(f"{out}.incomplete", foreign_lease())
    for options in ((), ("--overwrite",), ("--restart",)):
        assert prepare(f"{bucket}/in", out, *options, *server.flags) == 1
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith(f"recordmill: --output={out}: another run "), error
        assert "on elsewhere, since" in error and "lease" in error
    assert list(objects(server, f"{out}.incomplete")) == [LEASE] and not objects(server, out)


@GS_ONLY
def test_resume_waits_for_lease_of_another_machine(server, bucket, prepared, capsys, monkeypatch):
    out = f"{bucket}/out"
    monkeypatch.setattr(lease, "LIFE_SECONDS", 2.0)
    monkeypatch.setattr(lease, "_POLL_SECONDS", 0.1)
    write_lease(f"{out}.incomplete", foreign_lease())
    assert prepare(f"{bucket}/in", out, "--resume", *server.flags) == 0
    assert f"recordmill: --output={out}: waiting for process " in capsys.readouterr().err
    assert digest(objects(server, out)) == prepared and not objects(server, f"{out}.incomplete")


@S3_ONLY
def test_run_without_its_lease_writes_no_shard_and_publishes_nothing(server, bucket, capsys, monkeypatch):
    out = f"{bucket}/out"
    monkeypatch.setattr(lease, "RENEW_SECONDS", 600.0)  # A slow run would otherwise notice its loss before the workers.
    write_plan = global_shuffle.write_plan

    def lose_the_lease(run: RunPaths, plan: Plan) -> None:
        write_plan(run, plan)
        write_lease(f"{out}.incomplete", foreign_lease())

    monkeypatch.setattr(global_shuffle, "write_plan", lose_the_lease)
    assert prepare(f"{bucket}/in", out, *server.flags) == 1
    assert " taken over " in capsys.readouterr().err
    assert set(objects(server, out)) <= {MARKER}
    assert json.loads(objects(server, f"{out}.incomplete")[LEASE])["holder"] == "its", "the lease belongs to the other run"


@GS_ONLY
def test_run_that_lost_its_lease_keeps_files_of_the_other_run(server, bucket, capsys, monkeypatch):
    out = f"{bucket}/out"
    monkeypatch.setattr(lease, "RENEW_SECONDS", 600.0)  # A slow run would otherwise notice its loss before the workers.

    def lose_the_lease(*unused: object) -> None:
        write_lease(f"{out}.incomplete", foreign_lease())
        open_store(server, bucket).write(f"{out}.incomplete/other/plan/plan.json", b"other plan")
        raise RunError("the store is unavailable")

    monkeypatch.setattr(list_images, "join_listings", lose_the_lease)
    assert prepare(f"{bucket}/in", out, *server.flags) == 1
    existing = objects(server, f"{out}.incomplete")
    assert json.loads(existing[LEASE])["holder"] == "its" and existing["other/plan/plan.json"] == b"other plan"


@S3_ONLY
def test_removes_leftovers_of_run_killed_before_its_plan(server, bucket, prepared):
    """The command also aborts incomplete multipart uploads. Google Cloud Storage discards them automatically."""
    out, store = f"{bucket}/out", open_store(server, bucket)
    for name in (MARKER, "made-train.tfrecord-00000-of-00009", "index/made-train-00000-of-00009.idx"):
        store.write(f"{out}/{name}", b"left")
    for name in (MARKER, "spool/0.spool"):
        store.write(f"{out}.incomplete/{name}", b"left")
    store._client.create_multipart_upload(Bucket=bucket.removeprefix("s3://"), Key="out/made-train.tfrecord-00000-of-00007")
    assert prepare(f"{bucket}/in", out, *server.flags) == 0
    assert digest(objects(server, out)) == prepared
    assert not objects(server, f"{out}.incomplete")
    assert not store._client.list_multipart_uploads(Bucket=bucket.removeprefix("s3://")).get("Uploads")


@GS_ONLY
def test_rejects_unexpected_objects_and_keeps_them(server, bucket, capsys):
    open_store(server, bucket).write(f"{bucket}/out.incomplete/spool/notes.txt", b"mine")
    for source in ("in", "nowhere"):
        assert prepare(f"{bucket}/{source}", f"{bucket}/out", "--overwrite", *server.flags) == 2
        error = capsys.readouterr().err
        assert source != "in" or "out.incomplete, which" in error, error
        assert objects(server, f"{bucket}/out.incomplete") == {"spool/notes.txt": b"mine"}
    assert not objects(server, f"{bucket}/out")


@S3_ONLY
def test_complete_dataset_is_kept_if_it_cannot_be_copied(server, bucket, old, prepared, capsys, monkeypatch):
    out = f"{bucket}/out"
    write_objects(server, out, old)

    def fail_to_copy(*unused, **options) -> None:
        raise OSError(errno.EIO, "connection lost")

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "copy_all", fail_to_copy)
        assert prepare(f"{bucket}/in", out, "--overwrite", *server.flags) == 1
    error = capsys.readouterr().err
    assert f"{out} was being replaced" in error and f"{NUM_SHARDS} of {NUM_SHARDS} shards" in error, error
    kept = {name.partition("/dataset/")[2]: data for name, data in objects(server, f"{out}.incomplete").items() if "/dataset/" in name}
    assert digest({name: data for name, data in kept.items() if name != MARKER}) == prepared
    assert prepare(f"{bucket}/in", out, "--overwrite", "--resume", *server.flags) == 0
    assert digest(objects(server, out)) == prepared and not objects(server, f"{out}.incomplete")


@S3_ONLY
def test_overwrite_rejects_folder_without_dataset(server, bucket, capsys):
    open_store(server, bucket).write(f"{bucket}/out/thesis.pdf", b"precious")
    assert prepare(f"{bucket}/in", f"{bucket}/out", "--overwrite", *server.flags) == 2
    assert "is not a dataset" in capsys.readouterr().err
    assert objects(server, f"{bucket}/out") == {"thesis.pdf": b"precious"}


@GS_ONLY
def test_rejects_input_and_output_that_contain_each_other(server, bucket, capsys):
    for source, output in ((f"{bucket}/in", f"{bucket}/in/out"), (f"{bucket}/in/bee", f"{bucket}/in"), (bucket, f"{bucket}/o")):
        assert prepare(source, output, *server.flags) == 2
        assert "contain each other" in capsys.readouterr().err


def test_names_missing_bucket_and_empty_input(server, bucket, source, capsys):
    nowhere = f"{server.scheme}://no-such-bucket-anywhere/out"
    for option, call in (("--input", (nowhere, f"{bucket}/out")), ("--output", (str(source), nowhere))):
        assert prepare(*call, *server.flags) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{option}={nowhere}: bucket 'no-such-bucket-anywhere' does not exist" in line
    assert prepare(f"{bucket}/empty", f"{bucket}/out", *server.flags) == 2
    assert f"--input={bucket}/empty: does not exist" in capsys.readouterr().err


@S3_ONLY
def test_bytes_are_equal_after_retried_requests(server, bucket, prepared, monkeypatch):
    with fault_proxy(server) as (proxy, faults):
        monkeypatch.setattr(retries, "_FIRST_DELAY", 0.01)
        faults.choose = lambda method, path, number: (503, 429, "truncate")[number % 3] if number % 7 == 3 else None
        for name, value in proxy.environment.items():
            monkeypatch.setenv(name, value)
        assert prepare(f"{bucket}/in", f"{bucket}/out", *proxy.flags) == 0
        assert faults.count(503, 429) > 5
    monkeypatch.undo()
    assert digest(objects(server, f"{bucket}/out")) == prepared


class LastStep(NamedTuple):
    """The state of a bucket just before a run publishes its dataset."""

    bucket: str
    objects: dict[str, bytes]
    arguments: tuple


@pytest.fixture
def last_step(server, source, old, monkeypatch, replaces) -> LastStep:
    bucket, publish_once, recorded = server.make_bucket(), publish.publish, []
    if replaces:
        write_objects(server, f"{bucket}/out", old)

    def publish_twice(*arguments) -> None:
        recorded.append(LastStep(bucket, objects(server, bucket), arguments))
        publish_once(*arguments)
        publish_once(*arguments)  # Retried by a runner that did not receive the first result.

    with monkeypatch.context() as patch:
        patch.setattr(publish, "publish", publish_twice)
        assert prepare(str(source), f"{bucket}/out", *ONE_SHARD, *(("--overwrite",) if replaces else ()), *server.flags) == 0
    return recorded[0]


@pytest.fixture(scope="module")
def prepared_one_shard(source, tmp_path_factory) -> dict[str, str]:
    """Returns the SHA-256 digest of each file in a dataset on disk that has one shard."""
    output = tmp_path_factory.mktemp("as_one") / "out"
    assert prepare(str(source), str(output), *ONE_SHARD) == 0
    return digest({str(path.relative_to(output)): path.read_bytes() for path in output.rglob("*") if path.is_file()})


@pytest.mark.slow(6)
@pytest.mark.parametrize("server, replaces", [("s3", False), ("gs", True)], indirect=["server"], ids=["s3-new", "gs-overwrite"])
def test_second_attempt_completes_publishing_that_failed_at_any_step(server, last_step, prepared_one_shard, monkeypatch):
    """If any request to the object store fails during publishing, the next attempt succeeds."""
    bucket, before, arguments = last_step
    store = open_store(server, bucket)
    for step in itertools.count():
        store.remove_all(bucket)
        write_objects(server, bucket, before)
        calls = itertools.count()
        with monkeypatch.context() as patch:
            for name in ("remove_all", "remove", "copy_all", "write"):
                patch.setattr(ObjectStore, name, fail_at_step(getattr(ObjectStore, name), calls, step))
            try:
                publish.publish(*arguments)
            except WorkerKilled:
                pass
            else:
                break
        publish.publish(*arguments)
        actual = objects(server, f"{bucket}/out")
        assert digest(actual) == prepared_one_shard and not objects(server, f"{bucket}/out.incomplete"), step
        assert Manifest.from_json(actual[MANIFEST].decode()).name == "made"
    assert step >= (5 if "out/manifest.json" not in before else 9)


def fail_at_step(function: Callable[..., Any], calls: Iterator[int], step: int) -> Callable[..., Any]:
    """Returns a wrapper of `function` that raises `WorkerKilled` when the counter `calls` reaches `step`."""

    def call(*arguments: Any, **options: Any) -> Any:
        if next(calls) == step:
            raise WorkerKilled
        return function(*arguments, **options)

    return call


@GS_ONLY
def test_prepares_and_repairs_dataset_on_disk_from_images_in_store(server, bucket, prepared, tmp_path, capsys):
    """`repair` uses the options of the object store, and reports changed or missing inputs."""
    output = tmp_path / "out"
    assert prepare(f"{bucket}/in", str(output), *server.flags) == 0
    files = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    assert digest({str(path.relative_to(output)): data for path, data in files.items()}) == prepared
    shards = sorted(output.glob("made-train.tfrecord-*"))
    shards[0].unlink()
    shards[1].write_bytes(files[shards[1]][:-9])
    assert main(["repair", str(output), *server.flags]) == 0
    assert {path: path.read_bytes() for path in output.rglob("*") if path.is_file()} == files
    shards[0].unlink()
    store, catalog = open_store(server, bucket), pq.read_table(next((output / "catalog").glob("made-train-00000-*")))
    gone, changed = catalog.column("key").to_pylist()[:2]
    store.write(f"{bucket}/in/{changed}", encode(noise(99), "PNG"))
    capsys.readouterr()
    assert main(["repair", str(output), *server.flags]) == 1
    assert f"{shards[0].name}: {changed}: the image has " in capsys.readouterr().err
    store.remove(f"{bucket}/in/{gone}")
    assert main(["repair", str(output), *server.flags]) == 1
    assert f"{shards[0].name}: {gone}: is no longer" in capsys.readouterr().err
    assert not shards[0].exists()


@S3_ONLY
def test_csv_file_on_disk_names_images_in_store(server, bucket, source, tmp_path):
    """Worker processes read the images with the options of the object store."""
    rows = [f"{path.relative_to(source)},{path.parent.name}" for path in sorted(source.rglob("*.jpg")) if path.stem != "bad4"]
    (tmp_path / "rows.csv").write_text("\n".join(["image,label", *rows]))
    call = ["prepare", "--input", str(tmp_path / "rows.csv"), "--name=made", f"--num_shards={NUM_SHARDS}"]
    assert main([*call, "--image_root", f"{bucket}/in", "--output", str(tmp_path / "out"), *server.flags]) == 0
    assert main([*call, "--image_root", str(source), "--output", str(tmp_path / "disk")]) == 0
    shards = sorted((tmp_path / "out").glob("made-*"))
    assert [path.read_bytes() for path in shards] == [(tmp_path / "disk" / path.name).read_bytes() for path in shards]
    shards[0].unlink()
    assert main(["repair", str(tmp_path / "out"), *server.flags]) == 0
    assert shards[0].read_bytes() == (tmp_path / "disk" / shards[0].name).read_bytes()
