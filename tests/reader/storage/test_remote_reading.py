"""Tests that datasets are read from URLs, with and without a local cache. The servers run on the loopback interface."""

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
EXACT = {**OPTIONS, "shuffle": "exact", "cache_in_memory": 0, "seed": 0}


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("prepared")
    return prepare_images(folder, "--num_shards", "train=4,validation=1", num_images={"ant": 30, "bee": 30})


def digest(dataset: tf_input.PreparedDataset, split: str = "train", **options: object) -> str:
    """Returns a checksum of all pixels and labels of a split."""
    batches = dataset.batches(split, **(OPTIONS | options)).as_numpy_iterator()
    return hashlib.md5(b"".join(np.asarray(part).tobytes() for batch in batches for part in batch)).hexdigest()


@pytest.fixture(scope="module")
def expected(directory) -> Callable[..., str]:
    """Returns a function that computes a checksum of all pixels and labels of the local dataset."""
    local = functools.cache(lambda options: digest(tf_input.open(directory), **dict(options)))
    return lambda split="train", **options: local((("split", split), *options.items()))


@pytest.fixture
def served(directory, tmp_path) -> Iterator[RangeServer]:
    """Serves a copy of the dataset that the test may modify."""
    shutil.copytree(directory, tmp_path / "served" / "flowers")
    with RangeServer(tmp_path / "served") as server:
        yield server


@pytest.fixture(params=["gs", "s3", "az", "http", "memory"])
def url(request, served, monkeypatch) -> Iterator[str]:
    """Returns the URL of the dataset with the given scheme."""
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
def http_url(served) -> str:
    return f"{served.url}/bucket/flowers"


def cached_files(cache: pathlib.Path) -> list[str]:
    """Returns the names of the files that have cached blocks."""
    return sorted({path.parent.name for path in cache.rglob("*.block")})


def shard_names(directory: pathlib.Path, *splits: str) -> list[str]:
    manifest = tf_input.open(directory).manifest
    return sorted(shard.name for split in splits for shard in manifest.splits[split])


@pytest.mark.slow(0.8)
def test_reads_datasets_of_every_scheme_without_a_cache(directory, url, expected):
    local, remote = tf_input.open(directory), tf_input.open(url)
    assert (remote.manifest, remote.statistics, remote.directory) == (local.manifest, local.statistics, url)
    assert digest(remote, shuffle=True, seed=1) == expected(shuffle=True, seed=1)
    assert remote["validation"][1]["key"] == local["validation"][1]["key"]
    assert digest(pickle.loads(pickle.dumps(remote)), skip_corrupt=True) == expected()
    with pytest.raises(FileNotFoundError, match="nothing .*manifest.json"):
        tf_input.open(f"{url}/nothing")


@pytest.mark.slow(1.3)
def test_cache_is_filled_while_an_epoch_is_read(directory, served, http_url, expected, tmp_path):
    remote = tf_input.open(http_url, cache_directory=tmp_path / "cache")
    train = remote.batches("train", **OPTIONS)
    assert not set(cached_files(tmp_path / "cache")) & set(shard_names(directory, "train", "validation"))
    assert digest(remote, "validation") == expected("validation")
    assert set(shard_names(directory, "validation")) <= set(cached_files(tmp_path / "cache"))
    assert not set(shard_names(directory, "train")) & set(cached_files(tmp_path / "cache"))
    for _ in train:
        pass
    assert set(shard_names(directory, "train", "validation")) <= set(cached_files(tmp_path / "cache"))
    served.reset()
    assert digest(remote, shuffle=True, seed=1) == expected(shuffle=True, seed=1)
    assert digest(tf_input.open(http_url, cache_directory=tmp_path / "cache")) == expected()
    assert {path for method, path, _ in served.requests if method == "GET"} == {"bucket/flowers/manifest.json"}


def test_first_epoch_fetches_each_shard_once(directory, served, http_url, tmp_path):
    """Each small shard is fetched with one request."""
    shards = tf_input.open(directory).manifest.splits["train"]
    digest(tf_input.open(http_url, cache_directory=tmp_path / "cache"), shuffle=True, seed=1)
    requests = [path for method, path, _ in served.requests if method == "GET" and "tfrecord" in path]
    assert sorted(requests) == sorted(f"bucket/flowers/{shard.name}" for shard in shards)


@pytest.mark.parametrize("is_cached", [False, True])
def test_truncated_or_missing_remote_shard_raises_an_error(directory, served, http_url, tmp_path, is_cached):
    options = {"cache_directory": tmp_path / "cache"} if is_cached else {}
    shard = tf_input.open(directory).manifest.splits["train"][1]
    path = served.directory / "flowers" / shard.name
    complete = path.read_bytes()
    path.write_bytes(complete[:-1])
    with pytest.raises(ValueError, match=f"shard {http_url}/{shard.name} has {shard.num_bytes - 1} bytes; manifest.json"):
        digest(tf_input.open(http_url, **options))
    remote = tf_input.open(http_url, **options)
    digest(remote, skip_corrupt=True)
    assert len(remote.skipped) == 1
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"shard {http_url}/{shard.name} is missing.*manifest.json"):
        digest(tf_input.open(http_url, **options))


@pytest.mark.slow
def test_corrupt_cached_record_is_fetched_again(directory, served, http_url, expected, tmp_path):
    assert digest(tf_input.open(http_url, cache_directory=tmp_path / "cache")) == expected()
    (block,) = (tmp_path / "cache").glob(f"*/{shard_names(directory, 'train')[0]}/*.block")
    flip(block, 8 * 300)
    served.reset()
    assert digest(tf_input.open(http_url, cache_directory=tmp_path / "cache")) == expected()
    assert served.count("tfrecord") - sum(method == "HEAD" for method, _, _ in served.requests) == 1
    flip(served.directory / "flowers" / shard_names(directory, "train")[0], 8 * 300)
    shutil.rmtree(tmp_path / "cache")
    remote = tf_input.open(http_url, cache_directory=tmp_path / "cache")
    digest(remote, skip_corrupt=True)
    assert len(remote.skipped) == 1, "the record is corrupt in the store, too"


@pytest.mark.slow
def test_replaced_dataset_at_the_same_url_gets_its_own_cache(served, http_url, expected, tmp_path):
    first = tf_input.open(http_url, cache_directory=tmp_path / "cache")
    digest(first)
    other = prepare_images(tmp_path / "other", "--num_shards", "train=4,validation=1", "--seed", "1", num_images={"ant": 60})
    shutil.rmtree(served.directory / "flowers")
    shutil.copytree(other, served.directory / "flowers")
    second = tf_input.open(http_url, cache_directory=tmp_path / "cache")
    assert second.cache != first.cache
    assert digest(second) == digest(tf_input.open(other)) != expected()


@pytest.mark.slow
def test_cache_stays_within_its_limit_and_all_data_are_read(directory, http_url, expected, tmp_path):
    shards = tf_input.open(directory).manifest.splits["train"]
    limit = sum(shard.num_bytes for shard in shards) // 2
    remote = tf_input.open(http_url, cache_directory=tmp_path / "cache", cache_bytes=limit)
    for _ in range(2):
        assert digest(remote) == expected()
    assert 0 < sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.block")) <= limit


@pytest.mark.parametrize("limit", [0, -1, 0.5, "5GB", True, float("nan"), float("inf"), [5]])
def test_rejects_invalid_cache_bytes(directory, tmp_path, limit):
    for options in ({"cache_directory": tmp_path, "cache_bytes": limit}, {"cache_bytes": 10}):
        expected = f"cache_bytes={options['cache_bytes']!r}"
        with pytest.raises(ValueError) as caught:
            tf_input.open(directory, **options)
        assert str(caught.value).startswith(f"{expected} ")


def test_cache_bytes_can_be_a_float(directory, expected, tmp_path):
    data = tf_input.open(directory, cache_directory=tmp_path, cache_bytes=1e9)
    assert digest(data) == expected() and cached_files(tmp_path)
    assert digest(tf_input.open(directory, cache_directory=tmp_path, cache_bytes=np.float32(100))) == expected()


def test_rejects_invalid_directories(directory):
    for wrong in (None, 3, b"out", [directory]):
        with pytest.raises(ValueError, match=f"^directory={re.escape(repr(wrong))}"):
            tf_input.open(wrong)
    with pytest.raises(ValueError, match="^cache_directory=3"):
        tf_input.open(directory, cache_directory=3)
    for cache in ("gs://bucket/cache", "file:///cache"):
        with pytest.raises(ValueError, match=f"^cache_directory='{cache}'"):
            tf_input.open(directory, cache_directory=cache)


def test_rejects_url_without_bucket_or_server():
    cases = {
        "gs://": "gs:// names no bucket.",
        "gs:///a/b": "gs:///a/b names no bucket.",
        "S3://": "S3:// names no bucket.",
        "https:///a": "https:///a names no server.",
    }
    for url, message in cases.items():
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            tf_input.open(url)


def required_bytes(url: str, advice: str, **cache: object) -> int:
    """Returns the number of bytes that an exact order needs, which is read from the error message."""
    with pytest.raises(ValueError) as caught:
        tf_input.open(url, **cache).batches("train", **EXACT)
    actual = re.search(r"shuffle='window', or (.*) with ([\d,]+) bytes", str(caught.value))
    assert actual[1].startswith(advice)
    return int(actual[2].replace(",", ""))


@pytest.mark.slow
@pytest.mark.parametrize("choice", [{}, {"select": "label != 'ant'"}])
def test_exact_order_needs_the_cache_size_that_the_error_reports(served, http_url, tmp_path, tmp_path_factory, monkeypatch, choice):
    if choice:
        pytest.importorskip("pyarrow", reason="needs pyarrow, which reads catalogs: pip install pyarrow")
    monkeypatch.setitem(EXACT, "select", choice.get("select"))
    num_bytes = required_bytes(http_url, "tf_input.open(..., cache_directory=...)")
    cached = f"more cache_bytes, or free space, for {tmp_path}"
    assert required_bytes(http_url, cached, cache_directory=tmp_path / "small", cache_bytes=num_bytes - 1) == num_bytes
    data = tf_input.open(http_url, cache_directory=tmp_path / "cache", cache_bytes=num_bytes).batches("train", **EXACT)
    first = len(list(data))
    served.reset()
    assert len(list(data)) == first and not served.requests
    # The blocks of another open dataset also count towards the limit.
    shared = {"cache_directory": tmp_path / "shared", "cache_bytes": 1 << 30}
    other = tf_input.open(mixed_images(tmp_path_factory), **shared)
    list(other.batches("train", **OPTIONS))
    shared["cache_bytes"] = num_bytes
    more = required_bytes(http_url, "more cache_bytes", **shared)
    kept = sum(path.stat().st_size for path in (tmp_path / "shared").rglob("*.block"))
    assert more > num_bytes and kept <= more
    shared["cache_bytes"] = more
    data = tf_input.open(http_url, **shared).batches("train", **EXACT)
    list(data)
    served.reset()
    assert len(list(data)) == first and not served.requests


def test_local_dataset_has_exact_order_despite_a_small_cache(directory, tmp_path):
    options = {"shuffle": "exact", "cache_in_memory": 0, "seed": 0}
    local = tf_input.open(directory, cache_directory=tmp_path, cache_bytes=100)
    assert digest(local, **options) == digest(tf_input.open(directory), **options)


@pytest.mark.slow
def test_local_dataset_can_be_opened_by_file_url_or_cached(directory, expected, tmp_path):
    assert digest(tf_input.open(f"file://{directory}")) == expected()
    for path in (directory, f"{directory.parent}/./{directory.name}/"):
        assert digest(tf_input.open(path, cache_directory=tmp_path)) == expected()
    assert set(shard_names(directory, "train")) <= set(cached_files(tmp_path))
    assert not list(directory.rglob("*.block"))


def read_in_processes(url: str, cache: pathlib.Path, num_processes: int) -> list[str]:
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
def test_processes_share_a_cache_and_fetch_each_shard_once(served, http_url, expected, tmp_path):
    served.delay_s = 0.2  # makes the requests overlap
    assert read_in_processes(http_url, tmp_path / "cache", 2) == [expected()] * 2
    shards = [path for method, path, _ in served.requests if method == "GET" and "tfrecord" in path]
    assert len(shards) == len(set(shards)) == SHARDS["train"]


@pytest.mark.slow
def test_unreachable_server_raises_oserror(monkeypatch):
    monkeypatch.setattr(object_stores, "_RETRIES", {**object_stores._RETRIES, "max_retries": 1})
    port = reserve_port()
    with pytest.raises(OSError, match=f"127.0.0.1.*{port}"):
        tf_input.open(f"http://127.0.0.1:{port}")


@pytest.mark.slow
def test_reads_a_dataset_from_moto_s3_server(directory, expected, tmp_path, monkeypatch):
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
        with pytest.raises(FileNotFoundError, match="s3://no-such-bucket/x"):
            tf_input.open("s3://no-such-bucket/x")


def test_truncated_or_missing_shard_of_a_file_url_raises_an_error(directory, tmp_path):
    copy = pathlib.Path(shutil.copytree(directory, tmp_path / "copy"))
    dataset = tf_input.open(f"file://{copy}")
    path = copy / dataset.manifest.splits["train"][2].name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=f"shard file://{path} has .* bytes; manifest.json"):
        dataset.batches("train", **OPTIONS)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"shard file://{path} is missing.*manifest.json"):
        dataset.batches("train", **OPTIONS)
