"""Tests that `recordmill quality` detects sorted records, and records that were shuffled with a small buffer."""

import io
import json
import pathlib
import shutil
import sys
from typing import Callable, Iterator

import apache_beam as beam
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from beam_pipelines.__main__ import main
from beam_pipelines.elements.quality import LabelSequence, ShuffleQualities
from beam_pipelines.elements.shuffle_keys import shuffle_orders
from beam_pipelines.quality import measures
from beam_pipelines.quality.measures import SIGNIFICANCE, LabelOrder, assess
from made_images import write_class_folders
from made_records import example, write_dataset, write_records
from made_sources import made_case, write_coco, write_jsonl
from object_stores import connected_to, shared_server, upload_files
from tf_input.dataset_format import MANIFEST, Feature

NUM, NUM_CLASSES, NUM_SHARDS = 600, 6, 4
RESHUFFLED = 2_000


def quality(capfd: pytest.CaptureFixture, *arguments: object) -> tuple[int, list[dict], str]:
    """Runs `recordmill quality` and returns the exit code, the report for each path and the standard error."""
    capfd.readouterr()
    code = main(["quality", *map(str, arguments), "--json"])
    out, err = capfd.readouterr()
    return code, json.loads(out) if out else [], err


def write_labels(folder: pathlib.Path, labels: np.ndarray, compression: str = "", **more: list) -> pathlib.Path:
    """Writes records with the feature names of ImageNet into shards of equal size."""
    records = [example({"image/encoded": b"\xff\xd8\xff", "image/class/label": int(label)}) for label in labels]
    size = len(records) // NUM_SHARDS
    for shard in range(NUM_SHARDS):
        write_records(folder / f"train-{shard:05d}-of-{NUM_SHARDS:05d}", records[shard * size : (shard + 1) * size], compression)
    return folder


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns a dataset whose source lists the images class by class."""
    folder = tmp_path_factory.mktemp("quality")
    source = write_class_folders(folder / "in", {name: 50 for name in "abcdef"}, 1, 1)
    assert (
        main(
            [
                "prepare",
                "--input",
                str(source),
                "--output",
                str(folder / "out"),
                "--splits=train=0.8,test=0.2",
                f"--num_shards={NUM_SHARDS}",
            ]
        )
        == 0
    )
    return folder / "out"


@pytest.mark.slow(3)
def test_sorted_and_buffer_shuffled_records_are_detected(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    by_class = np.repeat(np.arange(NUM_CLASSES), NUM // NUM_CLASSES)
    buffered = np.array([*tf.data.Dataset.from_tensor_slices(by_class).shuffle(60, seed=1).as_numpy_iterator()])
    orders = {
        "sorted": (by_class, "not shuffled", 1),
        "buffered": (buffered, "not shuffled", 1),
        "shuffled": (np.random.default_rng(0).permutation(by_class), "shuffled", 0),
    }
    for name, (labels, verdict, exit_code) in orders.items():
        folder = write_labels(tmp_path / name, labels, "GZIP" if name == "buffered" else "")
        code, (actual,), err = quality(capfd, folder)
        assert (code, actual["verdict"]) == (exit_code, verdict), name
        assert (f"{folder}: not shuffled" in err) == bool(code)
        (split,) = actual["splits"].values()
        assert (split["records"], split["shards"], split["labels"]) == (NUM, NUM_SHARDS, "image/class/label")
        qualities = ShuffleQualities()
        qualities.add(0, {"label": LabelSequence.of(labels)})
        stated = qualities.to_json()["label"]
        run = split["measures"]["mean_run_length"]
        assert run["actual"] == pytest.approx(stated["mean_run_length"]) and run["chance"] == pytest.approx(
            stated["expected_mean_run_length"], rel=0.01
        )
        assert run["sorted"] == stated["sorted_mean_run_length"] == NUM / NUM_CLASSES
        windows = np.array([len(set(labels[first : first + 32])) for first in range(0, NUM - 31, 32)])
        assert split["measures"]["labels_in_32"]["actual"] == pytest.approx(windows.mean())
    code, actual, err = quality(capfd, tmp_path / "sorted" / "train-*", tmp_path / "shuffled", "--progress=json")
    assert code == 1 and [item["verdict"] for item in actual] == ["not shuffled", "shuffled"]
    assert {"name": "files", "done": NUM_SHARDS, "total": NUM_SHARDS}.items() <= json.loads(err.splitlines()[0])["stages"][0].items()


def test_prepared_dataset_is_judged_without_reading_records(
    prepared: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture
) -> None:
    copy = shutil.copytree(prepared, tmp_path / "copy")
    for shard in copy.glob("*.tfrecord-*"):
        shard.unlink()
    code, (actual,), _ = quality(capfd, copy)
    assert (code, actual["verdict"], list(actual["splits"])) == (0, "shuffled", ["train", "test"])
    stated = json.loads((prepared / "statistics.json").read_text())["splits"]["train"]["shuffle"]["label"]
    train = actual["splits"]["train"]
    assert train["measures"]["mean_run_length"]["actual"] == pytest.approx(stated["mean_run_length"])
    assert abs(train["measures"]["source_correlation"]["actual"]) < 0.3 and train["farthest_shard"].startswith("out-train.tfrecord-")
    assert main(["quality", str(prepared)]) == 0
    reported = capfd.readouterr().out
    assert "mean same-label run" in reported and "correlation" in reported and reported.endswith(f"{prepared}: shuffled\n")


def test_records_in_source_order_are_not_shuffled() -> None:
    labels, shards = np.random.default_rng(0).integers(0, 5, NUM), np.repeat(np.arange(4, dtype=np.int32), NUM // 4)
    assert assess(LabelOrder(labels, shards)).verdict == "shuffled"
    assert assess(LabelOrder(labels, shards, np.arange(NUM))).verdict == "not shuffled"
    assert assess(LabelOrder(labels, shards, np.arange(NUM)[::-1])).verdict == "not shuffled"


def _orders(seed: int, num: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yields (kind of labels, labels as shuffled by `prepare`, index of each label before the shuffle)."""
    indices = np.argsort(shuffle_orders(seed, [b"%d" % index for index in range(num)]))
    kinds = {
        "ten classes": np.arange(num) * 10 // num,
        "two of one class": np.where(np.arange(num) < 2, 0, 1),
        "a long tail": np.minimum((np.arange(1, num + 1) ** -0.5 * 40).astype(int), 30),
        "pairs": np.arange(num) // 2,
    }
    for kind, labels in kinds.items():
        yield kind, labels[indices], indices


@pytest.mark.slow(5)
@pytest.mark.parametrize("max_permuted", [measures._MAX_PERMUTED, 0], ids=["999 permutations", "39 permutations, as for many records"])
def test_prepared_order_is_never_called_unshuffled(max_permuted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test is deterministic because the seeds are fixed. The significance level is 0.001."""
    monkeypatch.setattr(measures, "_MAX_PERMUTED", max_permuted)
    num, shards = 200, np.repeat(np.arange(5, dtype=np.int32), 40)
    p_values = []
    for seed in range(25):
        for kind, labels, source in _orders(seed, num):
            actual = assess(LabelOrder(labels, shards, source), seed)
            assert actual.verdict in ("shuffled", "cannot tell"), (seed, kind, actual)
            p_values += [actual.p_value] if actual.p_value is not None else []
    assert len(p_values) > 40 and (max_permuted == 0 or np.mean(np.array(p_values) <= 0.1) < 0.25), "the p-values are not those of random orders"
    assert assess(LabelOrder(np.arange(num) * 10 // num, shards)).verdict == "not shuffled" and SIGNIFICANCE == 0.001


@pytest.mark.parametrize(
    "labels",
    [np.arange(50), np.zeros(50, int), np.arange(2), np.zeros(1, int)],
    ids=["unique labels", "one label", "two records", "one record"],
)
def test_labels_that_cannot_show_an_order_are_not_judged(labels: np.ndarray) -> None:
    actual = assess(LabelOrder(labels, np.zeros(len(labels), np.int32)))
    assert (actual.verdict, actual.p_value) == ("cannot tell", None)


def test_records_without_a_label_are_judged_by_length(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 2000, 300)
    for name, some in {"sorted": np.sort(lengths), "shuffled": lengths}.items():
        records = [bytes(length) if name == "sorted" else example({"tokens": [1] * int(length)}) for length in some]
        write_records(tmp_path / name / "a.tfrecord", records)
        code, (actual,), _ = quality(capfd, tmp_path / name)
        split = actual["splits"]["all"]
        assert (code, actual["verdict"]) == ((1, "not shuffled") if name == "sorted" else (0, "shuffled"))
        assert split["labels"] == "length, in 16 ranges" and "--label NAME" in split["notes"][0]
    ages = [example({"age": float(age), "image/encoded": b"\xff\xd8\xff"}) for age in np.sort(rng.normal(40, 9, 300))]
    path = write_records(tmp_path / "ages.tfrecord", ages)
    code, (actual,), _ = quality(capfd, path, "--label", "age")
    assert code == 1 and actual["splits"]["all"]["labels"] == "age, in 16 ranges"
    code, actual, err = quality(capfd, path, "--label", "agee")
    assert (code, actual) == (2, []) and "did you mean 'age'?" in err and err.count("\n") == 1


@pytest.mark.slow(1)
def test_plot_is_written_or_the_missing_extra_is_named(
    prepared: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "quality.png"
    assert main(["quality", str(prepared), "--plot", str(path)]) == 0
    pixels = np.asarray(Image.open(io.BytesIO(path.read_bytes())).convert("RGB"))
    assert pixels.shape[1] > 1000 and len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20
    assert quality(capfd, prepared, "--plot", tmp_path / "quality.txt")[0] == 2
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, _, err = quality(capfd, prepared, "--plot", path)
    assert code == 2 and "pip install 'recordmill[demo]'" in err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 5}, "format version 5"),
        ({"label_names": 5}, "label_names"),
        ({"splits": {"train": {"shards": [{"name": "../../x", "index": "i"}]}}}, "shards: name is '../../x'"),
        ({"splits": {"train": {"shards": [{"name": "x", "num_examples": 10**30}]}}}, "num_examples"),
    ],
)
@pytest.mark.parametrize("command", ["quality", "inspect"])
def test_invalid_manifest_raises_one_line_error(
    command: str, change: dict, message: str, prepared: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture
) -> None:
    (tmp_path / MANIFEST).write_text(json.dumps(json.loads((prepared / MANIFEST).read_text()) | change))
    assert main([command, str(tmp_path)]) == 2
    err = capfd.readouterr().err
    assert message in err and err.count("\n") == 1 and "Traceback" not in err


def test_missing_or_corrupt_dataset_raises_one_line_error(
    prepared: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.tfrecord").write_text("no records\x1b[31m" * 100)
    (tmp_path / "none.tfrecord").touch()
    corrupt = shutil.copytree(prepared, tmp_path / "corrupt")
    index = next((corrupt / "index").iterdir())
    index.write_bytes(index.read_bytes()[:-3])
    without_catalog = shutil.copytree(prepared, tmp_path / "without_catalog")
    next((without_catalog / "catalog").iterdir()).unlink()
    wrong_index = shutil.copytree(prepared, tmp_path / "wrong_index")
    index, *_, larger = sorted((wrong_index / "index").iterdir(), key=lambda path: path.stat().st_size)
    shutil.copy(larger, index)
    swapped = shutil.copytree(prepared, tmp_path / "swapped")
    shutil.copy(swapped / "catalog" / larger.name.replace(".idx", ".parquet"), swapped / "catalog" / index.name.replace(".idx", ".parquet"))
    capfd.readouterr()
    for label, expected in (("lable", "--label=lable"), ("height", "--label=height")):
        code, _, err = quality(capfd, prepared, "--label", label)
        assert code == 2 and expected in err and err.count("\n") == 1 and ("did you mean 'label'?" in err) == (label == "lable")
    no_records = (tmp_path / name for name in ("empty", "text.tfrecord", "none.tfrecord", "not-there"))
    for path in (*no_records, corrupt, without_catalog, wrong_index, swapped):
        code, actual, err = quality(capfd, path)
        assert (code, actual) == (2, []) and err.count("\n") == 1 and "\x1b" not in err and "--input" not in err, (path, err)


@pytest.mark.slow(4)
@pytest.mark.parametrize(("write", "options"), [(write_jsonl, ["--label=tags:multi_label"]), (write_coco, [])], ids=["tags", "objects"])
def test_verdict_by_catalog_agrees_with_verdict_by_records(
    write: Callable[[pathlib.Path], str], options: list[str], tmp_path: pathlib.Path, capfd: pytest.CaptureFixture
) -> None:
    """Without a manifest, `quality` opens the dataset as a TensorFlow Datasets directory and reads all records."""
    out, command = tmp_path / "out", ["prepare", "--input", str(tmp_path / "in" / write(tmp_path / "in")), *options]
    assert main([*command, "--output", str(out), "--splits=train=1", "--num_shards=2"]) == 0
    _, (ours,), _ = quality(capfd, out)
    manifest = json.loads((out / MANIFEST).read_text())
    for shard in manifest["splits"]["train"]["shards"]:
        shard |= {"catalog": "", "catalog_bytes": 0, "catalog_crc32c": 0}
    (out / MANIFEST).write_text(json.dumps(manifest))
    _, (without_catalog,), _ = quality(capfd, out)
    (out / MANIFEST).unlink()
    _, (theirs,), _ = quality(capfd, out)
    ours, without_catalog, theirs = (item["splits"]["train"] for item in (ours, without_catalog, theirs))
    assert ours["labels"] == theirs["labels"] and ours["records"] == theirs["records"] == 20 and not ours["notes"]
    for name in ("mean_run_length", "longest_run", "shard_distance"):
        assert ours["measures"][name]["actual"] == pytest.approx(theirs["measures"][name]["actual"]), name
    assert "source_correlation" in ours["measures"] and "source_correlation" not in {**theirs["measures"], **without_catalog["measures"]}
    assert "no catalog" in without_catalog["notes"][0] and without_catalog["labels"] == "size, in 16 ranges"


def test_corrupt_and_unparsable_records_are_counted_and_skipped(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    texts = np.random.default_rng(0).permutation(np.repeat([b"a" * 100, b"b" * 100, b"c" * 100], 500))
    records = [example({"image/encoded": b"\xff\xd8\xff", "image/class/text": bytes(text)}) for text in texts]
    path = write_records(tmp_path / "x.tfrecord", [*records, b"no example"])
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    code, (actual,), _ = quality(capfd, path, "--label=image/class/text")
    split = actual["splits"]["all"]
    assert (code, actual["verdict"], split["records"], split["labels"]) == (0, "shuffled", 1500, "image/class/text")
    assert len(split["notes"]) == 1 and split["notes"][0].startswith("1 corrupt ")
    flags = [example({"image": b"\xff\xd8\xff", "label": [index % 2, 1, index % 3 == 0]}) for index in range(60)]
    assert quality(capfd, write_records(tmp_path / "flags.tfrecord", flags))[1][0]["splits"]["all"]["labels"] == "label"
    path.unlink()
    path.symlink_to("/dev/null/no")
    code, actual, err = quality(capfd, path)
    assert (code, actual) == (2, []) and err.count("\n") == 1, err


def test_reason_of_a_verdict_is_printed(
    tmp_path: pathlib.Path, tmp_path_factory: pytest.TempPathFactory, capfd: pytest.CaptureFixture
) -> None:
    for labels, code, reason in (
        (np.repeat([0, 1], 60), 1, "100% of the way from random to sorted; p = 0.001,"),
        (np.zeros(8, int), 0, "cannot distinguish"),
    ):
        path = write_labels(tmp_path / f"{len(labels)}", labels)
        assert main(["quality", str(path)]) == code and reason in capfd.readouterr().out
    made = made_case(tmp_path_factory, "table csv, two heads")
    _, (actual,), _ = quality(capfd, made.output, "--label=ground")
    splits = actual["splits"].values()
    assert {split["labels"] for split in splits} == {"ground"} and sum(split["records"] for split in splits) == 20
    write_dataset(tmp_path / "none", [Feature("x", "float")], {"train": []})
    code, _, err = quality(capfd, tmp_path / "none")
    assert code == 2 and "no examples found" in err and err.count("\n") == 1


@pytest.mark.slow(1)
def test_reshuffle_of_beam_does_not_shuffle_sorted_records(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    """Beam's `Reshuffle` distributes bundles among workers, but keeps the order of the elements in each bundle."""
    labels = np.repeat(np.arange(10), RESHUFFLED // 10)
    with beam.Pipeline() as pipeline:
        records = [example({"image/encoded": b"\xff\xd8\xff", "image/class/label": int(label)}) for label in labels]
        pipeline | beam.Create(records) | beam.Reshuffle() | beam.io.WriteToTFRecord(str(tmp_path / "train"), num_shards=10)
    code, (actual,), _ = quality(capfd, tmp_path)
    (split,) = actual["splits"].values()
    assert (code, actual["verdict"], split["records"]) == (1, "not shuffled", RESHUFFLED), split


@pytest.mark.slow(3)
def test_quality_and_inspect_read_a_dataset_in_an_object_store(prepared: pathlib.Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    with connected_to(shared_server("s3")) as server:
        reader = {"AWS_ENDPOINT_URL": server.url, "AWS_ACCESS_KEY_ID": "made", "AWS_SECRET_ACCESS_KEY": "made", "AWS_REGION": "us-east-1"}
        for name, value in reader.items():
            monkeypatch.setenv(name, value)
        files = {str(path.relative_to(prepared)): path.read_bytes() for path in prepared.rglob("*") if path.is_file()}
        url = upload_files(server, files)
        _, (existing,), _ = quality(capfd, url, *server.flags)
        _, (here,), _ = quality(capfd, prepared)
        assert existing["splits"] == here["splits"] and existing["path"] == url
        _, (by_records,), _ = quality(capfd, f"{url}/*-train.tfrecord-*", *server.flags)
        assert by_records["splits"]["train"]["measures"]["mean_run_length"] == here["splits"]["train"]["measures"]["mean_run_length"]
        assert main(["inspect", url, "--where", "label == 'a'", "--split", "test"]) == 0
        assert capfd.readouterr().out.startswith("test: ")
        code, _, err = quality(capfd, f"{url}/nothing", *server.flags)
        assert code == 2 and err.count("\n") == 1
