"""Data sets behind URLs, read where they lie and through a cache, from real servers on loopback."""

import functools
import hashlib
import pathlib
import pickle
import re
import shutil
from typing import Callable, Iterator

import numpy as np
import pytest

import tf_input
from beam_pipelines.runners.job_servers import reserve_port
from forked_python import ForkedPython
from made_shards import flip
from object_stores import request, store_server
from prepared import mixed_images, prepare_images
from range_server import RangeServer
from tf_input.storage import object_stores

pytest.importorskip("obstore", reason="needs obstore: pip install 'recordmill[remote]'")

SHARDS = {"train": 4, "validation": 1}
OPTIONS = {"batch_size": 8, "image_size": 16, "shuffle": False}
EXACT = {**OPTIONS, "shuffle": "exact", "memory_budget": 0, "seed": 0}


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("prepared")
    return prepare_images(folder, "--num_shards", "train=4,validation=1", num_images={"ant": 30, "bee": 30})


def digest(dataset: tf_input.PreparedDataset, split: str = "train", **options: object) -> str:
    """A split, pixel by pixel."""
    batches = dataset.batches(split, **(OPTIONS | options)).as_numpy_iterator()
    return hashlib.md5(b"".join(np.asarray(part).tobytes() for batch in batches for part in batch)).hexdigest()


@pytest.fixture(scope="module")
def expected(directory) -> Callable[..., str]:
    """The same of the data set where it is."""
    local = functools.cache(lambda options: digest(tf_input.open(directory), **dict(options)))
    return lambda split="train", **options: local((("split", split), *options.items()))


@pytest.fixture
def served(directory, tmp_path) -> Iterator[RangeServer]:
    """The data set in a bucket, where tests may damage it."""
    shutil.copytree(directory, tmp_path / "served" / "flowers")
    with RangeServer(tmp_path / "served") as server:
        yield server


@pytest.fixture(params=["gs", "s3", "az", "http", "memory"])
def url(request, served, monkeypatch) -> Iterator[str]:
    """Where it lies, by scheme."""
    if request.param == "memory":
        fsspec = pytest.importorskip("fsspec")
        memory = fsspec.filesystem("memory")
        memory.put(str(served.directory), "/remote_reading", recursive=True)
        yield "memory://remote_reading/flowers"
        memory.rm("/remote_reading", recursive=True)
        return
    for name, value in served.environment(request.param).items():
        monkeypatch.setenv(name, value)
    yield f"{served.root(request.param)}/flowers"


@pytest.fixture
def web(served) -> str:
    return f"{served.url}/bucket/flowers"


def blocks(cache: pathlib.Path) -> list[str]:
    """The files of which blocks are kept, by their names."""
    return sorted({path.parent.name for path in cache.rglob("*.block")})


def shard_names(directory: pathlib.Path, *splits: str) -> list[str]:
    manifest = tf_input.open(directory).manifest
    return sorted(shard.name for split in splits for shard in manifest.splits[split])


@pytest.mark.slow(0.8)
def test_every_scheme_is_read_without_a_cache(directory, url, expected):
    local, remote = tf_input.open(directory), tf_input.open(url)
    assert (remote.manifest, remote.statistics, remote.directory) == (local.manifest, local.statistics, url)
    assert digest(remote, shuffle=True, seed=1) == expected(shuffle=True, seed=1)
    assert remote["validation"][1]["key"] == local["validation"][1]["key"]
    assert digest(pickle.loads(pickle.dumps(remote)), on_error="skip") == expected()
    with pytest.raises(FileNotFoundError, match="nothing is not a dataset: it has no manifest.json"):
        tf_input.open(f"{url}/nothing")


@pytest.mark.slow(1.3)
def test_a_cache_is_filled_while_an_epoch_is_read_and_not_before(directory, served, web, expected, tmp_path):
    remote = tf_input.open(web, cache_directory=tmp_path / "cache")
    train = remote.batches("train", **OPTIONS)
    assert not set(blocks(tmp_path / "cache")) & set(shard_names(directory, "train", "validation"))
    assert digest(remote, "validation") == expected("validation")
    assert set(shard_names(directory, "validation")) <= set(blocks(tmp_path / "cache"))
    assert not set(shard_names(directory, "train")) & set(blocks(tmp_path / "cache"))
    for _ in train:
        pass
    assert set(shard_names(directory, "train", "validation")) <= set(blocks(tmp_path / "cache"))
    served.reset()
    assert digest(remote, shuffle=True, seed=1) == expected(shuffle=True, seed=1)
    assert digest(tf_input.open(web, cache_directory=tmp_path / "cache")) == expected()
    assert {path for method, path, _ in served.requests if method == "GET"} == {"bucket/flowers/manifest.json"}


def test_a_first_epoch_asks_for_each_byte_once(directory, served, web, tmp_path):
    """And for whole shards where they are small, in one request each."""
    shards = tf_input.open(directory).manifest.splits["train"]
    digest(tf_input.open(web, cache_directory=tmp_path / "cache"), shuffle=True, seed=1)
    requests = [path for method, path, _ in served.requests if method == "GET" and "tfrecord" in path]
    assert sorted(requests) == sorted(f"bucket/flowers/{shard.name}" for shard in shards)


@pytest.mark.parametrize("is_cached", [False, True])
def test_what_is_not_what_the_manifest_says_is_refused(directory, served, web, tmp_path, is_cached):
    options = {"cache_directory": tmp_path / "cache"} if is_cached else {}
    shard = tf_input.open(directory).manifest.splits["train"][1]
    path = served.directory / "flowers" / shard.name
    complete = path.read_bytes()
    path.write_bytes(complete[:-1])
    with pytest.raises(ValueError, match=f"shard {web}/{shard.name} has {shard.num_bytes - 1} bytes; manifest.json says"):
        digest(tf_input.open(web, **options))
    remote = tf_input.open(web, **options)
    digest(remote, on_error="skip")
    assert len(remote.skipped) == 1
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"shard {web}/{shard.name} is missing; manifest.json"):
        digest(tf_input.open(web, **options))


@pytest.mark.slow
def test_a_record_that_is_damaged_in_the_cache_is_fetched_again(directory, served, web, expected, tmp_path):
    assert digest(tf_input.open(web, cache_directory=tmp_path / "cache")) == expected()
    (block,) = (tmp_path / "cache").glob(f"*/{shard_names(directory, 'train')[0]}/*.block")
    flip(block, 8 * 300)
    served.reset()
    assert digest(tf_input.open(web, cache_directory=tmp_path / "cache")) == expected()
    assert served.count("tfrecord") - sum(method == "HEAD" for method, _, _ in served.requests) == 1
    flip(served.directory / "flowers" / shard_names(directory, "train")[0], 8 * 300)
    shutil.rmtree(tmp_path / "cache")
    remote = tf_input.open(web, cache_directory=tmp_path / "cache")
    digest(remote, on_error="skip")
    assert len(remote.skipped) == 1, "where it comes from it is no better"


@pytest.mark.slow
def test_another_dataset_at_the_same_url_has_a_cache_of_its_own(served, web, expected, tmp_path):
    first = tf_input.open(web, cache_directory=tmp_path / "cache")
    digest(first)
    other = prepare_images(tmp_path / "other", "--num_shards", "train=4,validation=1", "--seed", "1", num_images={"ant": 60})
    shutil.rmtree(served.directory / "flowers")
    shutil.copytree(other, served.directory / "flowers")
    second = tf_input.open(web, cache_directory=tmp_path / "cache")
    assert second.cache != first.cache
    assert digest(second) == digest(tf_input.open(other)) != expected()


@pytest.mark.slow
def test_a_limit_is_kept_and_the_rest_is_read_all_the_same(directory, web, expected, tmp_path):
    shards = tf_input.open(directory).manifest.splits["train"]
    limit = sum(shard.num_bytes for shard in shards) // 2
    remote = tf_input.open(web, cache_directory=tmp_path / "cache", cache_bytes=limit)
    for _ in range(2):
        assert digest(remote) == expected()
    assert 0 < sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.block")) <= limit


@pytest.mark.parametrize("limit", [0, -1, 0.5, "5GB", True, float("nan"), float("inf"), [5]])
def test_a_limit_is_a_positive_number_of_bytes_of_a_cache(directory, tmp_path, limit):
    for options in ({"cache_directory": tmp_path, "cache_bytes": limit}, {"cache_bytes": 10}):
        expected = f"cache_bytes={options['cache_bytes']!r}"
        with pytest.raises(ValueError) as caught:
            tf_input.open(directory, **options)
        assert str(caught.value).startswith(f"{expected} ")


def test_a_limit_may_be_a_float(directory, expected, tmp_path):
    data = tf_input.open(directory, cache_directory=tmp_path, cache_bytes=1e9)
    assert digest(data) == expected() and blocks(tmp_path)
    assert digest(tf_input.open(directory, cache_directory=tmp_path, cache_bytes=np.float32(100))) == expected()


def test_what_is_no_place_is_refused(directory):
    for location in (None, 3, b"out", [directory]):
        with pytest.raises(ValueError, match=f"^directory={re.escape(repr(location))}"):
            tf_input.open(location)
    with pytest.raises(ValueError, match="^cache_directory=3"):
        tf_input.open(directory, cache_directory=3)
    for cache in ("gs://bucket/cache", "file:///cache"):
        with pytest.raises(ValueError, match=f"^cache_directory='{cache}'"):
            tf_input.open(directory, cache_directory=cache)


def test_a_url_without_a_bucket_is_refused_before_anybody_is_asked():
    cases = {
        "gs://": "gs:// names no bucket.",
        "gs:///a/b": "gs:///a/b names no bucket.",
        "S3://": "S3:// names no bucket.",
        "https:///a": "https:///a names no server.",
    }
    for url, message in cases.items():
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            tf_input.open(url)


def room_that_is_asked_for(url: str, where: str, **cache: object) -> int:
    """Bytes, as the message has them where an exact order is refused."""
    with pytest.raises(ValueError) as caught:
        tf_input.open(url, **cache).batches("train", **EXACT)
    actual = re.search(r"shuffle='window', or (.*) with ([\d,]+) bytes", str(caught.value))
    assert actual[1].startswith(where)
    return int(actual[2].replace(",", ""))


@pytest.mark.slow
@pytest.mark.parametrize("choice", [{}, {"where": "label != 'ant'"}])
def test_an_exact_order_needs_a_disk_and_the_room_that_it_asks_for_is_enough(served, web, tmp_path, tmp_path_factory, monkeypatch, choice):
    if choice:
        pytest.importorskip("pyarrow", reason="needs pyarrow, which reads catalogs: pip install pyarrow")
    monkeypatch.setitem(EXACT, "where", choice.get("where"))
    space = room_that_is_asked_for(web, "tf_input.open(..., cache_directory=...)")
    cached = f"more cache_bytes, or free space, for {tmp_path}"
    assert room_that_is_asked_for(web, cached, cache_directory=tmp_path / "small", cache_bytes=space - 1) == space
    data = tf_input.open(web, cache_directory=tmp_path / "cache", cache_bytes=space).batches("train", **EXACT)
    first = len(list(data))
    served.reset()
    assert len(list(data)) == first and not served.requests
    # Another data set that is open takes room of its own.
    shared = {"cache_directory": tmp_path / "shared", "cache_bytes": 1 << 30}
    other = tf_input.open(mixed_images(tmp_path_factory), **shared)
    list(other.batches("train", **OPTIONS))
    shared["cache_bytes"] = space
    more = room_that_is_asked_for(web, "more cache_bytes", **shared)
    kept = sum(path.stat().st_size for path in (tmp_path / "shared").rglob("*.block"))
    assert more > space and kept <= more
    shared["cache_bytes"] = more
    data = tf_input.open(web, **shared).batches("train", **EXACT)
    list(data)
    served.reset()
    assert len(list(data)) == first and not served.requests


def test_a_local_directory_with_a_cache_that_is_too_small_has_an_exact_order(directory, tmp_path):
    options = {"shuffle": "exact", "memory_budget": 0, "seed": 0}
    local = tf_input.open(directory, cache_directory=tmp_path, cache_bytes=100)
    assert digest(local, **options) == digest(tf_input.open(directory), **options)


@pytest.mark.slow
def test_a_local_directory_may_be_cached_and_named_by_a_url(directory, expected, tmp_path):
    assert digest(tf_input.open(f"file://{directory}")) == expected()
    for path in (directory, f"{directory.parent}/./{directory.name}/"):
        assert digest(tf_input.open(path, cache_directory=tmp_path)) == expected()
    assert set(shard_names(directory, "train")) <= set(blocks(tmp_path))
    assert not list(directory.rglob("*.block"))


def read_by_processes(url: str, cache: pathlib.Path, num_processes: int) -> list[str]:
    code = (
        f"import sys; sys.path[:0] = [{str(pathlib.Path(__file__).parent)!r}]\n"
        "import test_remote_reading, tf_input\n"
        f"print(test_remote_reading.digest(tf_input.open({url!r}, cache_directory={str(cache)!r})))"
    )
    processes = [ForkedPython("-c", code) for _ in range(num_processes)]
    try:
        return [process.communicate(timeout=240)[0].strip() for process in processes]
    finally:
        for process in processes:
            process.kill()


@pytest.mark.slow(3)
def test_processes_share_a_cache_and_fetch_each_shard_once(served, web, expected, tmp_path):
    served.delay_s = 0.2  # so that they meet
    assert read_by_processes(web, tmp_path / "cache", 2) == [expected()] * 2
    shards = [path for method, path, _ in served.requests if method == "GET" and "tfrecord" in path]
    assert len(shards) == len(set(shards)) == SHARDS["train"]


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_an_oserror(monkeypatch):
    monkeypatch.setattr(object_stores, "_RETRIES", {**object_stores._RETRIES, "max_retries": 1})
    port = reserve_port()
    with pytest.raises(OSError, match=f"127.0.0.1.*{port}"):
        tf_input.open(f"http://127.0.0.1:{port}")


@pytest.mark.slow
def test_real_s3(directory, expected, tmp_path, monkeypatch):
    """By the server that others test against."""
    pytest.importorskip("moto.server", reason="needs a local S3 server: moto[server]")
    with store_server("s3") as server:
        bucket = server.make_bucket()
        for name, value in RangeServer.environment(server, "s3").items():
            monkeypatch.setenv(name, value)
        for path in directory.rglob("*"):
            if path.is_file():
                request(server.url, "PUT", f"/{bucket[5:]}/flowers/{path.relative_to(directory)}", path.read_bytes())
        for options in ({}, {"cache_directory": tmp_path}):
            assert digest(tf_input.open(f"{bucket}/flowers", **options)) == expected()
        with pytest.raises(FileNotFoundError, match="s3://no-such-bucket/x is not a dataset"):
            tf_input.open("s3://no-such-bucket/x")


@pytest.mark.parametrize("url", ["s3", "http"], indirect=True)
def test_a_service_needs_files_that_tensorflow_reads(url):
    with pytest.raises(ValueError, match=f"{url}: a tf.data service "):
        tf_input.open(url).batches("train", **OPTIONS, service="grpc://127.0.0.1:1")


def test_shards_behind_a_url_are_checked_like_local_ones(directory, tmp_path):
    copy = pathlib.Path(shutil.copytree(directory, tmp_path / "copy"))
    dataset = tf_input.open(f"file://{copy}")
    path = copy / dataset.manifest.splits["train"][2].name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=f"shard file://{path} has .* bytes; manifest.json says"):
        dataset.batches("train", **OPTIONS)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"shard file://{path} is missing; manifest.json lists it"):
        dataset.batches("train", **OPTIONS)
