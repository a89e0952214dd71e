"""The promises hold in object stores: the same bytes as on disk, all or nothing, and what replaces what."""

import dataclasses
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
from beam_pipelines.elements.plan import Plan
from beam_pipelines.errors import RunError
from beam_pipelines.publish import publishing as publish
from beam_pipelines.runners.jobs import parse_pipeline_options
from beam_pipelines.shuffle import global_shuffle
from beam_pipelines.sources import list_images
from beam_pipelines.storage import lease
from beam_pipelines.storage.lease import LEASE, make_lease, write_lease
from beam_pipelines.storage.marked_directory import MARKER
from beam_pipelines.storage.object_stores import retries
from beam_pipelines.storage.object_stores.object_store import ObjectStore
from beam_pipelines.storage.object_stores.open_object_store import open_object_store
from made_images import encode, noise, write_class_folders
from object_stores import StoreServer, faulty, put, reached, shared_server
from tf_input.dataset_format import MANIFEST, RUN, Manifest

pytestmark = pytest.mark.slow


# What does not depend on the kind of the store; the two take turns.
S3_ALONE = pytest.mark.parametrize("server", ["s3"], indirect=True)
GS_ALONE = pytest.mark.parametrize("server", ["gs"], indirect=True)


class Broken(Exception):
    """The worker is gone."""


@pytest.fixture(scope="module", params=["s3", "gs"])
def server(request) -> Iterator[StoreServer]:
    with reached(shared_server(request.param)) as server:
        yield server


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("source")
    write_class_folders(folder, {"ant": 9, "bee": 6})
    (folder / "bee" / "flat.bmp").write_bytes(encode(noise(), "BMP"))
    (folder / "bee" / "large.jpg").write_bytes(encode(noise(2, 300, 400), "JPEG"))
    (folder / "bee" / "bad4.jpg").write_bytes(b"<html>")  # by its key not one of the 16 that are tried first
    return folder


@pytest.fixture(scope="module")
def prepared(source, tmp_path_factory) -> dict[str, str]:
    """sha256 of each file of the same dataset, written to disk."""
    output = tmp_path_factory.mktemp("prepared") / "out"
    assert prepare(str(source), str(output)) == 0
    return digest({str(path.relative_to(output)): path.read_bytes() for path in output.rglob("*") if path.is_file()})


@pytest.fixture(scope="module")
def old(source, tmp_path_factory) -> dict[str, bytes]:
    """The files of another dataset, which are to be replaced; it has one shard."""
    output = tmp_path_factory.mktemp("old") / "out"
    assert prepare(str(source), str(output), *ONE_SHARD, "--seed=5") == 0
    return {str(path.relative_to(output)): path.read_bytes() for path in output.rglob("*") if path.is_file()}


@pytest.fixture
def bucket(server, source) -> str:
    """With the source in it, at `in/`."""
    return put(server, {f"in/{path.relative_to(source)}": path.read_bytes() for path in source.rglob("*.*")}, folder="")


# Servers answer some hundred requests a second; each shard is a dozen, and each image two.
NUM_SHARDS = 3
ONE_SHARD = ("--splits=train=1", "--num_shards=1")


def prepare(source: str, output: str, *options: str) -> int:
    call = ["prepare", "--input", source, "--output", output, "--name=made", "--max_bad_fraction=0.1", *options]
    return main(call if "--num_shards=1" in options else [*call, f"--num_shards={NUM_SHARDS}"])


def open_store(server: StoreServer, path: str) -> ObjectStore:
    FileSystems.set_options(parse_pipeline_options(server.flags))
    return open_object_store(path)


def write_objects(server: StoreServer, folder: str, files: dict[str, bytes]) -> None:
    store = open_store(server, folder)
    for name, data in files.items():
        store.write(f"{folder}/{name}", data)


def objects(server: StoreServer, folder: str) -> dict[str, bytes]:
    store = open_store(server, folder)
    return {name: store.read(f"{folder}/{name}") for name, _ in store.list(folder)}


def digest(files: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items()) if name != RUN}


def test_from_a_store_to_a_store_the_bytes_are_those_on_disk_and_the_summary_says_what_is_there(server, bucket, prepared, capsys):
    assert prepare(f"{bucket}/in", f"{bucket}/out", *server.flags) == 0
    printed = capsys.readouterr().out
    assert f"dataset:      {bucket}/out" in printed and "dead letters: 1 of 18 inputs" in printed
    assert digest(objects(server, f"{bucket}/out")) == prepared
    assert not objects(server, f"{bucket}/out.incomplete")


@S3_ALONE
def test_duplicates_are_found_where_the_spool_is_a_store_too(server, source, bucket, tmp_path, capfd):
    assert prepare(str(source), str(tmp_path / "out"), "--duplicates=group") == 0
    assert prepare(f"{bucket}/in", f"{bucket}/out", "--duplicates=group", *server.flags) == 0
    on_disk = {str(path.relative_to(tmp_path / "out")): path for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert digest(objects(server, f"{bucket}/out")) == digest({name: path.read_bytes() for name, path in on_disk.items()})
    assert main(["leaks", f"{bucket}/out", *server.flags]) == 0 and "1 near-duplicate pair, 0 of them" in capfd.readouterr().out


@S3_ALONE
def test_names_of_classes_are_read_from_the_store_that_the_options_lead_to(server, source, tmp_path, capfd):
    names = put(server, {"names.txt": b"bee\nant\ncow\n"}, "")
    nowhere = ["--s3_endpoint_url=http://127.0.0.1:9", "--store_timeout=0.2"]
    for option in (f"--label_names={names}/names.txt", f"--label_names=label={names}/names.txt", f"--label_names_from={names}/old"):
        FileSystems.set_options(parse_pipeline_options([]))  # as where a command begins
        assert prepare(str(source), str(tmp_path / "out"), option, "--estimate", *server.flags, *nowhere) == 1
        assert "http://127.0.0.1:9 for 0.2 s" in capfd.readouterr().err
    FileSystems.set_options(parse_pipeline_options([]))
    assert prepare(str(source), str(tmp_path / "out"), f"--label_names={names}/names.txt", *server.flags) == 0
    assert (tmp_path / "out" / "label.labels.txt").read_text() == "bee\nant\ncow\n"


@GS_ALONE
def test_the_layout_of_tfx_without_a_check_in_place_of_another(server, bucket, old, source, tmp_path):
    options = ("--output_layout=tfx", "--check=none")
    assert prepare(str(source), str(tmp_path / "out"), *options) == 0
    write_objects(server, f"{bucket}/out", old)
    assert prepare(f"{bucket}/in", f"{bucket}/out", *options, "--overwrite", *server.flags) == 0
    on_disk = {str(path.relative_to(tmp_path / "out")): path for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert digest(objects(server, f"{bucket}/out")) == digest({name: path.read_bytes() for name, path in on_disk.items()})


@S3_ALONE
def test_an_estimate_needs_the_listing_alone(server, bucket, capsys):
    assert main(["prepare", f"--input={bucket}/in", f"--output={bucket}/out", "--estimate", *server.flags]) == 0
    assert "images:    18 in 2 classes" in capsys.readouterr().out
    assert not objects(server, f"{bucket}/out")


@GS_ALONE
def test_what_is_there_is_replaced_only_when_asked_and_only_by_what_is_whole(server, bucket, old, prepared, capsys, monkeypatch):
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


@GS_ALONE
def test_a_failed_run_leaves_no_dataset_and_nothing_that_could_not_be_gone_on_from(server, bucket, prepared, capsys):
    """With too many dead letters it fails at its end; with a split that stays empty before it has planned anything."""
    call = ["prepare", f"--input={bucket}/in", f"--output={bucket}/out", "--name=made", f"--num_shards={NUM_SHARDS}", *server.flags]
    assert main([*call, "--splits=train=0.999999,test=0.000001"]) == 2
    assert "split 'test' would be empty" in capsys.readouterr().err
    assert not objects(server, f"{bucket}/out") and not objects(server, f"{bucket}/out.incomplete")
    assert main([*call, "--max_bad_fraction=0"]) == 2
    assert "1 of 18 inputs are dead letters" in capsys.readouterr().err
    assert MANIFEST not in objects(server, f"{bucket}/out")
    assert main([*call, "--max_bad_fraction=0.1", "--resume"]) == 0
    assert digest(objects(server, f"{bucket}/out")) == prepared and not objects(server, f"{bucket}/out.incomplete")


def lease_elsewhere(directory: str, holder: str = "its") -> None:
    """As a command on another machine takes it, just now."""
    write_lease(directory, dataclasses.replace(make_lease("run", holder), host="elsewhere", boot="another"))


@S3_ALONE
def test_of_two_runs_to_one_output_the_second_says_so(server, bucket, prepared, capsys):
    out = f"{bucket}/out"
    lease_elsewhere(f"{out}.incomplete")
    for options in ((), ("--overwrite",), ("--restart",)):
        assert prepare(f"{bucket}/in", out, *options, *server.flags) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"recordmill: --output={out}: another run is writing to it: process "), error
        assert error.count("\n") == 1 and "on elsewhere, since" in error and "its lease expires in" in error
    assert list(objects(server, f"{out}.incomplete")) == [LEASE] and not objects(server, out)


@GS_ALONE
def test_what_a_command_on_another_machine_has_left_is_waited_for_and_gone_on_from(server, bucket, prepared, capsys, monkeypatch):
    out = f"{bucket}/out"
    monkeypatch.setattr(lease, "LIFE_SECONDS", 2.0)
    monkeypatch.setattr(lease, "_LOOK_SECONDS", 0.1)
    lease_elsewhere(f"{out}.incomplete")
    assert prepare(f"{bucket}/in", out, "--resume", *server.flags) == 0
    assert f"recordmill: --output={out}: waiting for process " in capsys.readouterr().err
    assert digest(objects(server, out)) == prepared and not objects(server, f"{out}.incomplete")


@S3_ALONE
def test_a_run_whose_lease_another_has_taken_writes_no_shard_and_publishes_nothing(server, bucket, capsys, monkeypatch):
    out = f"{bucket}/out"
    write_plan = global_shuffle.write_plan

    def lose_the_lease(plan: Plan) -> None:
        write_plan(plan)
        lease_elsewhere(f"{out}.incomplete")

    monkeypatch.setattr(global_shuffle, "write_plan", lose_the_lease)
    assert prepare(f"{bucket}/in", out, *server.flags) == 1
    assert "another run has taken over this output (process " in capsys.readouterr().err
    assert set(objects(server, out)) <= {MARKER}
    assert json.loads(objects(server, f"{out}.incomplete")[LEASE])["holder"] == "its", "what is there is the other's"


@GS_ALONE
def test_a_run_that_loses_its_lease_before_its_plan_is_whole_removes_nothing_of_the_other(server, bucket, capsys, monkeypatch):
    out = f"{bucket}/out"

    def lose_the_lease(*unused: object) -> None:
        lease_elsewhere(f"{out}.incomplete")
        open_store(server, bucket).write(f"{out}.incomplete/other/plan/plan.json", b"its plan")
        raise RunError("the store was away")

    monkeypatch.setattr(list_images, "join_listings", lose_the_lease)
    assert prepare(f"{bucket}/in", out, *server.flags) == 1
    existing = objects(server, f"{out}.incomplete")
    assert json.loads(existing[LEASE])["holder"] == "its" and existing["other/plan/plan.json"] == b"its plan"


@S3_ALONE
def test_what_a_killed_run_left_before_its_plan_was_whole_goes_unasked(server, bucket, prepared):
    """And what it has half sent is forgotten; Google's store forgets uploads by itself."""
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


@GS_ALONE
def test_what_no_run_has_put_beside_the_output_is_refused_and_stays(server, bucket, capsys):
    open_store(server, bucket).write(f"{bucket}/out.incomplete/spool/notes.txt", b"mine")
    for source in ("in", "nowhere"):
        assert prepare(f"{bucket}/{source}", f"{bucket}/out", "--overwrite", *server.flags) == 2
        error = capsys.readouterr().err
        assert source != "in" or "out.incomplete/, which the run needs" in error, error
        assert objects(server, f"{bucket}/out.incomplete") == {"spool/notes.txt": b"mine"}
    assert not objects(server, f"{bucket}/out")


@S3_ALONE
def test_a_dataset_that_cannot_be_copied_to_its_place_stays_where_it_is_whole(server, bucket, old, prepared, capsys, monkeypatch):
    out = f"{bucket}/out"
    write_objects(server, out, old)

    def break_off(*unused, **options) -> None:
        raise OSError(errno.EIO, "broken off")

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "copy_all", break_off)
        assert prepare(f"{bucket}/in", out, "--overwrite", *server.flags) == 1
    error = capsys.readouterr().err
    assert f"{out} was being replaced and is incomplete: {NUM_SHARDS} of {NUM_SHARDS} shards are complete. " in error, error
    kept = {name.partition("/dataset/")[2]: data for name, data in objects(server, f"{out}.incomplete").items() if "/dataset/" in name}
    assert digest({name: data for name, data in kept.items() if name != MARKER}) == prepared
    assert prepare(f"{bucket}/in", out, "--overwrite", "--resume", *server.flags) == 0
    assert digest(objects(server, out)) == prepared and not objects(server, f"{out}.incomplete")


@S3_ALONE
def test_overwriting_takes_nothing_that_is_no_dataset(server, bucket, capsys):
    open_store(server, bucket).write(f"{bucket}/out/thesis.pdf", b"precious")
    assert prepare(f"{bucket}/in", f"{bucket}/out", "--overwrite", *server.flags) == 2
    assert "is not a dataset" in capsys.readouterr().err
    assert objects(server, f"{bucket}/out") == {"thesis.pdf": b"precious"}


@GS_ALONE
def test_paths_within_each_other_are_refused(server, bucket, capsys):
    for source, output in ((f"{bucket}/in", f"{bucket}/in/out"), (f"{bucket}/in/bee", f"{bucket}/in"), (bucket, f"{bucket}/o")):
        assert prepare(source, output, *server.flags) == 2
        assert "contain each other" in capsys.readouterr().err


def test_a_bucket_that_is_not_there_and_an_empty_input_are_named(server, bucket, source, capsys):
    nowhere = f"{server.scheme}://no-such-bucket-anywhere/out"
    for option, call in (("--input", (nowhere, f"{bucket}/out")), ("--output", (str(source), nowhere))):
        assert prepare(*call, *server.flags) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{option}={nowhere}: bucket 'no-such-bucket-anywhere' does not exist" in line
    assert prepare(f"{bucket}/empty", f"{bucket}/out", *server.flags) == 2
    assert f"--input={bucket}/empty: does not exist" in capsys.readouterr().err


@S3_ALONE
def test_a_store_that_is_busy_now_and_then_changes_nothing(server, bucket, prepared, monkeypatch):
    with faulty(server) as (proxy, faults):
        monkeypatch.setattr(retries, "_FIRST_DELAY", 0.01)
        faults.choose = lambda method, path, number: (503, 429, "truncate")[number % 3] if number % 7 == 3 else None
        for name, value in proxy.environment.items():
            monkeypatch.setenv(name, value)
        assert prepare(f"{bucket}/in", f"{bucket}/out", *proxy.flags) == 0
        assert faults.count(503, 429) > 5
    monkeypatch.undo()
    assert digest(objects(server, f"{bucket}/out")) == prepared


class LastStep(NamedTuple):
    """What a run's last step, its publishing, was given: what lies in a bucket, by name, and the arguments."""

    bucket: str
    objects: dict[str, bytes]
    arguments: tuple


@pytest.fixture
def last_step(server, source, old, monkeypatch, replaces) -> LastStep:
    bucket, publish_once, noted = server.make_bucket(), publish.publish, []
    if replaces:
        write_objects(server, f"{bucket}/out", old)

    def publish_twice(*arguments) -> None:
        noted.append(LastStep(bucket, objects(server, bucket), arguments))
        publish_once(*arguments)
        publish_once(*arguments)  # as by a runner that did not hear of its end

    with monkeypatch.context() as patch:
        patch.setattr(publish, "publish", publish_twice)
        assert prepare(str(source), f"{bucket}/out", *ONE_SHARD, *(("--overwrite",) if replaces else ()), *server.flags) == 0
    return noted[0]


@pytest.fixture(scope="module")
def prepared_as_one(source, tmp_path_factory) -> dict[str, str]:
    """sha256 of each file of a dataset of one shard, written to disk."""
    output = tmp_path_factory.mktemp("as_one") / "out"
    assert prepare(str(source), str(output), *ONE_SHARD) == 0
    return digest({str(path.relative_to(output)): path.read_bytes() for path in output.rglob("*") if path.is_file()})


@pytest.mark.slow(6)
@pytest.mark.parametrize("server, replaces", [("s3", False), ("gs", True)], indirect=["server"], ids=["s3-new", "gs-in place of another"])
def test_publishing_that_breaks_off_anywhere_is_completed_by_another_attempt(server, last_step, prepared_as_one, monkeypatch):
    """The second attempt finds whatever the first one left."""
    bucket, before, arguments = last_step
    store = open_store(server, bucket)
    for step in itertools.count():
        store.remove_all(bucket)
        write_objects(server, bucket, before)
        calls = itertools.count()
        with monkeypatch.context() as patch:
            for name in ("remove_all", "remove", "copy_all", "write"):
                patch.setattr(ObjectStore, name, breaking(getattr(ObjectStore, name), calls, step))
            try:
                publish.publish(*arguments)
            except Broken:
                pass
            else:
                break
        publish.publish(*arguments)
        actual = objects(server, f"{bucket}/out")
        assert digest(actual) == prepared_as_one and not objects(server, f"{bucket}/out.incomplete"), step
        assert Manifest.from_json(actual[MANIFEST].decode()).name == "made"
    assert step >= (5 if "out/manifest.json" not in before else 9)


def breaking(function: Callable[..., Any], calls: Iterator[int], step: int) -> Callable[..., Any]:
    """A function that is not called where all such calls have come to a certain number."""

    def call(*arguments: Any, **options: Any) -> Any:
        if next(calls) == step:
            raise Broken
        return function(*arguments, **options)

    return call


@GS_ALONE
def test_a_dataset_on_disk_is_made_and_repaired_from_a_store(server, bucket, prepared, tmp_path, capsys):
    """With the options that reach it; what has changed there is named."""
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
    assert f"{shards[0].name}: {gone}: is no longer listed" in capsys.readouterr().err
    assert not shards[0].exists()


@S3_ALONE
def test_a_table_on_a_disk_may_name_images_in_a_store(server, bucket, source, tmp_path):
    """Light processes would not know how to reach it."""
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
