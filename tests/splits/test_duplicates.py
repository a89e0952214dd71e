"""Tests `recordmill prepare --duplicates` and `recordmill leaks` with near-duplicate images."""

import io
import json
import pathlib
import shutil
from collections import Counter
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from beam_pipelines.__main__ import main
from beam_pipelines.images import visual_groups
from beam_pipelines.parallel import progress
from beam_pipelines.shards import shard_writer
from beam_pipelines.elements.catalog_files import read_catalog
from engines import digest
from made_images import encode, noise, png, write_files
from made_records import example, write_dataset, write_records
from tf_input import dataset_format

pytestmark = pytest.mark.slow(3)

SPLITS = "--splits=train=0.6,test=0.4"

# The keys of each cluster. The folder in a key is its class.
NEAR_DUPLICATES = [
    {"ant/00.jpg", "ant/00_again.jpg"},  # identical files
    {"ant/01.jpg", "bee/01_small.png"},
    {"ant/02.jpg", "ant/02_flipped.jpg", "ant/02_poor.jpg"},
    {"bee/page.png", "bee/page_again.png"},  # blank images; "ant/page.png" has another size
]


def write_images(folder: pathlib.Path) -> pathlib.Path:
    """Writes class folders with 24 different images, near-duplicates of some images, and a truncated file."""
    pictures = {f"{'ant' if seed < 12 else 'bee'}/{seed:02d}": Image.fromarray(noise(seed, 8, 8)).resize((96, 72), Image.Resampling.BICUBIC) for seed in range(24)}
    files = {f"{name}.jpg": to_jpeg(image) for name, image in pictures.items()}
    files["ant/00_again.jpg"] = files["ant/00.jpg"]
    files["bee/01_small.png"] = to_png(pictures["ant/01"].resize((48, 36), Image.Resampling.BICUBIC))
    files["ant/02_flipped.jpg"] = to_jpeg(ImageOps.mirror(pictures["ant/02"]))
    files["ant/02_poor.jpg"] = to_jpeg(pictures["ant/02"], quality=30)
    files["bee/page.png"] = files["bee/page_again.png"] = to_png(Image.new("RGB", (40, 50), "white"))
    files["ant/page.png"] = to_png(Image.new("RGB", (41, 50), "white"))
    files["ant/cut.jpg"] = files["ant/03.jpg"][:400]
    return write_files(folder, files)


def to_jpeg(image: Image.Image, quality: int = 90) -> bytes:
    return encode(np.asarray(image), "JPEG", quality=quality)


def to_png(image: Image.Image) -> bytes:
    return encode(np.asarray(image), "PNG")


def prepare(source: pathlib.Path, output: pathlib.Path, *options: str, expected: int = 0) -> pathlib.Path:
    arguments = ["--name=made", "--max_bad_fraction=0.1", SPLITS, *options]
    assert main(["prepare", "--input", str(source), "--output", str(output), *arguments]) == expected
    return output


def rows_of(output: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Returns a mapping from each example key to its catalog row and split."""
    actual = {}
    for split, shards in dataset_format.read_manifest(output).splits.items():
        for shard in shards:
            actual |= {row["key"]: {**row, "split": split} for row in read_catalog(f"{output}/{shard.catalog}").to_pylist()}
    return actual


def near_duplicate_lines(output: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / dataset_format.NEAR_DUPLICATES).read_text().splitlines()]


def leaks_of(output: pathlib.Path) -> dict[str, Any]:
    return json.loads((output / dataset_format.LEAKS).read_text())


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> pathlib.Path:
    return write_images(tmp_path_factory.mktemp("duplicates") / "in")


@pytest.fixture(scope="module")
def grouped(source, tmp_path_factory) -> pathlib.Path:
    return prepare(source, tmp_path_factory.mktemp("grouped") / "out", "--duplicates=group", "--stratify")


@pytest.fixture(scope="module")
def plain(source, tmp_path_factory) -> pathlib.Path:
    """Returns a dataset of the source images that is prepared without the search for duplicates."""
    return prepare(source, tmp_path_factory.mktemp("plain") / "out")


def test_near_duplicates_are_in_one_group_and_one_split(grouped, capfd):
    clusters: dict[str, set[str]] = {}
    for line in near_duplicate_lines(grouped):
        clusters.setdefault(line["cluster"], set()).add(line["key"])
    assert sorted(clusters.values(), key=min) == sorted(NEAR_DUPLICATES, key=min) and [min(cluster) for cluster in clusters.values()] == list(clusters)
    rows = rows_of(grouped)
    for name, cluster in clusters.items():
        assert len({rows[key]["split"] for key in cluster}) == 1 and {rows[key]["group"] for key in cluster} == {name}
    assert sum(row["group"] is not None for row in rows.values()) == sum(map(len, NEAR_DUPLICATES))
    assert rows["ant/page.png"]["perceptual_hash"] is None and len(rows["ant/04.jpg"]["perceptual_hash"]) == 32
    leaks = leaks_of(grouped)
    assert leaks["detected"]["num_pairs"] == 6 == leaks["remaining"]["num_pairs"] and leaks["remaining"]["num_pairs_across_splits"] == 0 < leaks["remaining"]["num_pairs_across_random_splits"]
    images = [{"key": "ant/01.jpg", "label": "ant"}, {"key": "bee/01_small.png", "label": "bee"}]
    assert leaks["remaining"]["labels"] == {"num_conflicts": 1, "num_conflicts_of": {"label": 1}, "conflicts": [{"feature": "label", "images": images}]}
    assert leaks["remaining"]["labels"].items() <= leaks["detected"].items() and leaks["remaining"]["groups"] == {"num": 4, "num_across_splits": 0, "first": []}
    assert set(leaks["classes"]["label"]) == {"ant", "bee"} and abs(leaks["classes"]["label"]["ant"]["train"] - 0.6) < 0.2
    manifest = dataset_format.read_manifest(grouped)
    assert (manifest.num_inputs, manifest.num_dead_letters, manifest.num_dropped) == (32, 1, 0)
    (letter,) = map(json.loads, (grouped / "dead_letters.jsonl").read_text().splitlines())
    assert (letter["path"], letter["stage"], letter["reason"]) == ("ant/cut.jpg", "check", "bad_image")
    assert main(["verify", str(grouped)]) == 0 and main(["leaks", str(grouped)]) == 0
    reported = capfd.readouterr().out
    assert "near-duplicate pairs: 6, in different splits: 0 " in reported and "unknown format: 3\n" in reported


def test_repair_restores_a_shard_and_a_catalog(grouped, source, tmp_path, capfd):
    copy = shutil.copytree(grouped, tmp_path / "out")
    before = digest(copy)
    info, other = (shards[0] for shards in dataset_format.read_manifest(copy).splits.values())
    (copy / info.name).write_bytes(b"corrupt")
    (copy / other.catalog).unlink()
    assert main(["repair", str(copy)]) == 0 and digest(copy) == before
    key = read_catalog(f"{copy}/{other.catalog}").column("key")[0].as_py()
    image = (source / key).read_bytes()
    (copy / other.catalog).unlink()
    (source / key).write_bytes(b"<html>")
    code, reported = main(["repair", str(copy)]), capfd.readouterr().err
    (source / key).write_bytes(image)
    assert code == 1 and f"{other.name}: {key}: " in reported and "not a supported image" in reported, reported
    near_duplicates = (copy / dataset_format.NEAR_DUPLICATES).read_bytes()
    (copy / dataset_format.NEAR_DUPLICATES).write_bytes(near_duplicates.replace(b'"group"', b'"family"'))
    assert main(["repair", str(copy)]) == 1 and "near_duplicates.jsonl" in capfd.readouterr().err
    (copy / dataset_format.NEAR_DUPLICATES).unlink()
    assert main(["verify", str(copy), "--quick"]) == 1 and main(["repair", str(copy)]) == 1


def test_drop_keeps_the_first_image_of_each_cluster(source, plain, tmp_path, capfd):
    capfd.readouterr()
    output = prepare(source, tmp_path / "out", "--duplicates=drop")
    reported = capfd.readouterr()
    assert "near-duplicate pairs: 6, images: 9, clusters: 4; 5 dropped" in reported.out and "pairs in two splits: 0 (" in reported.out
    assert "with different labels: 1, " in reported.err and "class shares of label: train " in reported.out
    rows, dropped = rows_of(output), {line["key"] for line in near_duplicate_lines(output) if line["dropped"]}
    assert dropped == {key for cluster in NEAR_DUPLICATES for key in cluster - {min(cluster)}} and not dropped & set(rows)
    manifest = dataset_format.read_manifest(output)
    assert (manifest.num_inputs, manifest.num_dead_letters, manifest.num_dropped, len(rows)) == (32, 1, 5, 26)
    now, sizes = leaks_of(output)["remaining"], [num / 26 for num in leaks_of(output)["remaining"]["parts"].values()]
    assert now["num_pairs"] == 0 and now["num_pairs_across_random_splits"] == round(6 * (1 - sum(size**2 for size in sizes)), 1) > 0
    at_random = f"about {now['num_pairs_across_random_splits']}"
    assert at_random in reported.out and at_random in (output / dataset_format.REPORT).read_text()
    assert main(["verify", str(output)]) == 0
    # The remaining images are in the same splits as without the option.
    plain_rows = rows_of(plain)
    assert {key: row["split"] for key, row in rows.items()} == {key: plain_rows[key]["split"] for key in rows}


def test_leaks_are_equal_with_and_without_hashes_in_the_catalog(source, plain, tmp_path, capfd):
    kept = prepare(source, tmp_path / "kept", "--duplicates=keep")
    plain = shutil.copytree(plain, tmp_path / "plain")
    shards = [info.name for infos in dataset_format.read_manifest(kept).splits.values() for info in infos]
    assert all((kept / name).read_bytes() == (plain / name).read_bytes() for name in shards)
    capfd.readouterr()
    actual = []
    for directory in (kept, plain):
        assert main(["leaks", str(directory), "--json"]) == 1
        actual.append(json.loads(capfd.readouterr().out))
    certificate = leaks_of(kept)
    assert actual[0] == actual[1] == {**certificate["remaining"], "classes": certificate["classes"]} and actual[0]["num_pairs_across_splits"] > 0
    assert actual[0]["num_by_bytes"] == 3, "the blank pages"
    (apart,) = actual[0]["across_splits"]
    rows = rows_of(kept)
    assert apart["first"] and all({rows[key]["split"] for key in pair} == {"train", "test"} for pair in apart["first"])
    capfd.readouterr()
    assert main(["leaks", str(kept)]) == 1
    assert f"train ({apart['num_images'][0]} images) and test ({apart['num_images'][1]} images): pairs: " in capfd.readouterr().out
    without = shutil.copytree(plain, tmp_path / "without")
    manifest = json.loads((without / dataset_format.MANIFEST).read_text())
    for shard in (shard for split in manifest["splits"].values() for shard in split["shards"]):
        shard |= {"catalog": "", "catalog_bytes": 0, "catalog_crc32c": 0}
    (without / dataset_format.MANIFEST).write_text(json.dumps(manifest))
    assert main(["leaks", str(without), "--json"]) == 1 and json.loads(capfd.readouterr().out)["across_splits"] == actual[0]["across_splits"]
    item, other = sorted((plain / "catalog").iterdir())[:2]
    shutil.copy(item, other)
    assert main(["leaks", str(plain)]) == 2 and f"{other.name} " in capfd.readouterr().err
    # Without a manifest, each file name pattern is a split. The files contain all images of the dataset.
    (tmp_path / "foreign").mkdir()
    for name in shards:
        shutil.copy(kept / name, tmp_path / "foreign" / name)
    assert main(["leaks", str(kept), str(tmp_path / "foreign"), "--json"]) == 1
    across = json.loads(capfd.readouterr().out)
    assert across["num_pairs"] == 4 * actual[0]["num_pairs"] + len(rows), "pairs in and across both, and equal images"
    assert across["labels"]["num_conflicts_of"] == {"label": 1, f"{tmp_path / 'foreign'}: label": 1}, "class numbers must not be compared with class names"
    for wrong, message in ((tmp_path, "is a dataset"), (kept / "*.tfrecord-*", "is a dataset"), (tmp_path / "no", "is not a dataset")):
        assert main(["leaks", str(tmp_path / "foreign"), str(wrong)]) == 2
        reported = capfd.readouterr().err
        assert message in reported and reported.count("\n") == 1, reported
    corrupt = shutil.copytree(kept, tmp_path / "corrupt")
    (gone := next((corrupt / "catalog").iterdir())).unlink()
    assert main(["leaks", str(corrupt)]) == 1 and f"{gone} " in capfd.readouterr().err


def test_near_duplicates_in_given_splits_are_rejected(source, tmp_path, capfd):
    given = tmp_path / "in"
    for name in ("ant", "bee"):
        for path in (source / name).iterdir():
            split = "test" if path.name in ("01.jpg", "02_flipped.jpg", "20.jpg") else "train"
            (given / split / name).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, given / split / name / path.name)
    call = ["prepare", "--input", str(given), "--source=image_folder", "--output", str(tmp_path / "out"), "--max_bad_fraction=0.1", "--duplicates=group"]
    capfd.readouterr()
    assert main(call) == 2
    reported = capfd.readouterr().err
    assert reported.count("\n") == 1 and "(clusters: 2)" in reported and "--duplicates=drop" in reported
    assert main([*call[:-1], "--duplicates=drop"]) == 0


def test_drop_keeps_earlier_images_and_drops_their_new_near_duplicates(source, tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        shutil.copytree(source, folder)
    first = rows_of(prepare(old, tmp_path / "first", "--duplicates=drop"))
    for seed in range(12, 24):
        small = to_png(Image.fromarray(noise(seed, 8, 8)).resize((48, 36), Image.Resampling.BICUBIC))
        write_files(new, {f"ant/{seed - 12:02d}_new.png" if seed % 2 else f"bee/{seed:02d}_new.png": small})
    (new / "ant/00.jpg").unlink()  # the dataset does not have its copy
    grown = rows_of(prepare(new, tmp_path / "grown", "--duplicates=drop", f"--splits_from={tmp_path / 'first'}"))
    assert set(grown) == {*first, "ant/00_again.jpg"} - {"ant/00.jpg"}
    assert all(grown[key]["split"] == first[key]["split"] for key in set(first) & set(grown))
    dropped = {line["key"] for line in near_duplicate_lines(tmp_path / "grown") if line["dropped"]}
    assert dropped >= {f"ant/{seed - 12:02d}_new.png" for seed in range(13, 24, 2)}
    # The table has only these two keys
    (tmp_path / "last.csv").write_text("key,split\nant/02_poor.jpg,test\nant/02_flipped.jpg,train\n")
    few = rows_of(prepare(new, tmp_path / "few", "--duplicates=drop", f"--splits_from={tmp_path / 'last.csv'}"))
    assert few["ant/02_flipped.jpg"]["split"] == "train"
    assert not {"ant/02.jpg", "ant/02_poor.jpg"} & set(few), "only the first image with an earlier split is kept"


def test_near_duplicates_in_different_earlier_splits_are_rejected(source, plain, tmp_path, capfd):
    first = rows_of(plain)
    call = ["prepare", "--input", str(source), "--source=image_folder", "--output", str(tmp_path / "out"), "--max_bad_fraction=0.1", SPLITS]
    call += [f"--splits_from={plain}", "--duplicates=group"]
    apart = [cluster for cluster in NEAR_DUPLICATES if len({first[key]["split"] for key in cluster}) > 1]
    capfd.readouterr()
    assert main(call) == 2
    reported = capfd.readouterr().err
    assert reported.count("\n") == 1 and f"(clusters: {len(apart)})" in reported, reported
    assert apart and f"in different splits of --splits_from={plain}" in reported, reported


def test_images_that_cannot_be_hashed_are_dead_letters(source, tmp_path, capfd, monkeypatch):
    counted, count_in_beam = Counter(), progress.count_in_beam
    monkeypatch.setattr(progress, "count_in_beam", lambda counts: (counted.update(counts), count_in_beam(counts)))
    call = ["prepare", "--input", str(source), "--output", str(tmp_path / "out"), "--duplicates=drop", SPLITS]
    assert main([*call, "--max_bad_fraction=0"]) == 2
    assert (counted["hashed"], counted["dead_letters"], counted["dead_letters_bad_image"]) == (32, 1, 1)
    assert "--max_bad_fraction=0 " in capfd.readouterr().err
    names = [f"{name}/{index}.jpg" for name in ("ant", "bee") for index in range(3)]
    broken = write_files(tmp_path / "broken", dict.fromkeys(names, b"\xff\xd8\xff no more"))
    call[2:5] = [str(broken), "--output", str(tmp_path / "none")]
    assert main([*call, "--max_bad_fraction=1"]) == 2
    assert "no input " in capfd.readouterr().err
    assert not (tmp_path / "out").exists() and not (tmp_path / "none").exists()


def test_leaks_rejects_unsuitable_records_in_one_line(tmp_path, capfd):
    image = to_png(Image.fromarray(noise(0, 8, 8)))
    cases = {
        "two": ([example({"image": image}), example({"image": [image, image]})], "record 1 has 2 values of 'image'"),
        "none": ([example({"a": b"text", "b": 5})], "a, b"),
        "invalid example": ([example({"image": image}), b"no example"], "invalid example.tfrecord: "),
    }
    for name, (records, message) in cases.items():
        path = write_records(tmp_path / f"{name}.tfrecord", records)
        assert main(["leaks", str(path)]) == 2
        reported = capfd.readouterr().err
        assert message in reported and reported.count("\n") == 1, reported
    path.write_bytes(path.read_bytes().replace(b"IDAT", b"IDAU"))
    assert main(["leaks", str(path)]) == 2 and str(path) in capfd.readouterr().err
    write_dataset(tmp_path / "numbers", [dataset_format.Feature("x", "float")], {"train": [{"x": 1.0}]})
    assert main(["leaks", str(tmp_path / "numbers")]) == 2 and "numbers" in capfd.readouterr().err
    twice = [example({"image": to_png(Image.fromarray(noise(index % 150, 8, 8)))}) for index in range(300)]
    many = write_records(tmp_path / "many.tfrecord", twice)
    assert main(["leaks", str(many), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["num_pairs"] == 150


def records_of(*labels: Any, first: int = 0) -> list[bytes]:
    """Returns one record with a random image for each of the given labels."""
    images = (to_png(Image.fromarray(noise(seed, 8, 8))) for seed in range(first, first + len(labels)))
    return [example({"image": image, "label": label}) for image, label in zip(images, labels)]


def test_parts_of_leaks_are_named_by_files_without_shard_numbers(tmp_path, capfd):
    ones, others = records_of(0, 1, 2, 3), records_of(0, 1, 5, 3)
    files = {
        "train-00000-of-00002": ones[:2],
        "train-00001-of-00002": others[:2],  # near-duplicates of the first shard in the same split
        "train-00000-of-00003.tfrecord": records_of(9, first=20),  # another set of shards
        "other.tfrecord-00000-of-00001": records_of(9, first=21),
        "single.tfrecord": ones[2:],
        "test/train.tfrecord-00000-of-00002": others[2:],
        "test/train.tfrecord-00001-of-00002": [],
    }
    for name, records in files.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        write_records(tmp_path / "in" / name, records)
    assert main(["leaks", str(tmp_path / "in"), "--json"]) == 1
    actual = json.loads(capfd.readouterr().out)
    parts = {"other": 1, "single.tfrecord": 2, "test/train": 2, "train-*-of-00002": 4, "train-*-of-00003.tfrecord": 1}
    assert actual["parts"] == parts
    assert [item["parts"] for item in actual["across_splits"]] == [["single.tfrecord", "test/train"]] and (actual["num_pairs"], actual["num_pairs_across_splits"]) == (4, 2)
    images = [{"key": "single.tfrecord:0", "label": "2"}, {"key": "test/train.tfrecord-00000-of-00002:0", "label": "5"}]
    assert actual["labels"] == {"num_conflicts": 1, "num_conflicts_of": {"label": 1}, "conflicts": [{"feature": "label", "images": images}]}
    assert main(["leaks", str(tmp_path / "in" / "train-*-of-00002")]) == 0
    assert capfd.readouterr().out.startswith("train 4 images\nnear-duplicate pairs: 2, in different splits: 0 ")
    assert main(["leaks", str(write_records(tmp_path / "empty.tfrecord", []))]) == 2
    reported = capfd.readouterr().err
    assert "empty.tfrecord: " in reported and reported.count("\n") == 1


@pytest.mark.parametrize(("labels", "others", "expected"), [((b"ant", b"bee"), (b"ant", b"fly"), 1), (([1, 0], [2]), ([0, 1], [3]), 1), ((0.5, 1.5), (2.5, 3.5), 0)])
def test_leaks_compares_texts_sets_and_integer_labels(labels, others, expected, tmp_path, capfd):
    paths = [write_records(tmp_path / f"{name}.tfrecord", records_of(*some)) for name, some in (("a", labels), ("b", others))]
    assert main(["leaks", *map(str, paths), "--json"]) == 1
    across = json.loads(capfd.readouterr().out)
    assert across["num_pairs_across_splits"] == 2 and sum(across["labels"]["num_conflicts_of"].values()) == (expected if isinstance(labels[0], bytes) else 0)
    write_records(tmp_path / "in-00000-of-00001.tfrecord", [*records_of(*labels), *records_of(*others)])
    assert main(["leaks", str(tmp_path / "in-00000-of-00001.tfrecord"), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["labels"]["num_conflicts"] == expected


def test_images_compared_by_bytes_are_found_in_another_dataset(source, tmp_path, capfd):
    """Datasets are compared by image bytes if one of the catalogs contains no perceptual hashes."""
    source = write_files(shutil.copytree(source, tmp_path / "in"), {"bee/page.gif": encode(np.full((30, 40), 255, np.uint8), "GIF")})
    visual_hashes = prepare(source, tmp_path / "looks", "--duplicates=keep")
    exact = prepare(source, tmp_path / "exact", "--duplicates=keep", "--exact_only")
    plain = prepare(source, tmp_path / "plain")
    actual = {}
    for directories in ((visual_hashes,), (exact,), (visual_hashes, exact), (exact, plain), (plain, visual_hashes)):
        capfd.readouterr()
        assert main(["leaks", *map(str, directories), "--json"]) == 1, directories
        actual[directories] = json.loads(capfd.readouterr().out)
    num_images = sum(actual[visual_hashes,]["parts"].values())
    assert actual[visual_hashes,] == actual[exact,] and actual[visual_hashes,]["num_pairs"] == 6 and actual[visual_hashes,]["num_by_bytes"] == 4
    for directories in list(actual)[2:]:
        assert actual[directories]["num_pairs"] == 4 * 6 + num_images, directories


def test_tensors_of_different_sizes_are_compared_by_bytes(tmp_path, capfd):
    # 9 to 11 have the values of 0 to 2 but other sizes
    arrays = {f"ant/{number}.npy": np.full((2 + number % 7, 3, 2), number % 9, np.float32) for number in range(12)}
    arrays["ant/again.npy"] = arrays["ant/3.npy"]
    files = {}
    for name, array in arrays.items():
        np.save(buffer := io.BytesIO(), array)
        files[name] = buffer.getvalue()
    output = prepare(write_files(tmp_path / "in", files), tmp_path / "out")
    hashed, hashed_again = (prepare(tmp_path / "in", tmp_path / name, "--duplicates=keep") for name in ("hashed", "hashed_again"))
    assert dataset_format.read_manifest(output).features["image"].shape == (None, None, 2)
    for directories, num_pairs in {(output,): 1, (hashed,): 1, (output, hashed): 4 + 13, (hashed, hashed_again): 4 + 13}.items():
        capfd.readouterr()
        main(["leaks", *map(str, directories), "--json"])
        actual = json.loads(capfd.readouterr().out)
        assert (actual["num_pairs"], actual["num_by_bytes"]) == (num_pairs, 13 * len(directories)), directories


LABELS = {  # weather, ground and tags by key; one cluster differs in the weather, another in the tags
    "ant/01.jpg": ("sun", "sand", "a;b"),
    "bee/01_small.png": ("rain", "sand", "b;a"),
    "ant/02.jpg": ("sun", "sand", "a"),
    "ant/02_flipped.jpg": ("sun", "sand", ""),
    "ant/02_poor.jpg": ("sun", "sand", "a"),
    **{f"{'ant' if seed < 12 else 'bee'}/{seed:02d}.jpg": ("sun", ("sand", "mud")[seed % 2], "b") for seed in range(3, 24)},
}
CONFLICTS = [
    {"feature": "weather", "images": [{"key": "ant/01.jpg", "label": "sun"}, {"key": "bee/01_small.png", "label": "rain"}]},
    {"feature": "tags", "images": [{"key": "ant/02.jpg", "label": ["a"]}, {"key": "ant/02_flipped.jpg", "label": []}]},
]


def test_label_conflicts_are_reported_for_each_feature(source, tmp_path, capfd):
    """Each label feature is compared separately. The order of the labels within a multi-label feature is ignored."""
    rows = ["image,weather,ground,tags", *(",".join([key, *labels]) for key, labels in LABELS.items())]
    (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
    heads = ["--label=weather", "--label=ground", "--label=tags:multi_label", "--label_separator=;", f"--image_root={source}"]
    output = prepare(tmp_path / "rows.csv", tmp_path / "out", "--duplicates=group", *heads)
    reported, leaks = capfd.readouterr(), leaks_of(output)
    for labels in (leaks["detected"], leaks["remaining"]["labels"]):
        assert (labels["num_conflicts"], labels["num_conflicts_of"]) == (2, {"ground": 0, "tags": 1, "weather": 1}) and labels["conflicts"] == CONFLICTS
    (line,) = (line for line in near_duplicate_lines(output) if line["key"] == "bee/01_small.png")
    assert line["labels"] == {"ground": "sand", "tags": ["a", "b"], "weather": "rain"}
    assert "with different labels: 2, " in reported.err and "'ant/01.jpg' is 'sun', 'bee/01_small.png' is 'rain'" in reported.err
    assert set(leaks["classes"]) == {"ground", "tags", "weather"} and set(leaks["classes"]["tags"]) == {"a", "b"}
    assert all(sum(shares.values()) == pytest.approx(1) for classes in leaks["classes"].values() for shares in classes.values())
    assert "class shares of tags: train " in reported.out and "share of weather rain" in (output / dataset_format.REPORT).read_text()
    assert main(["leaks", str(output)]) == 0
    reported = capfd.readouterr().out
    assert "(1 of tags, 1 of weather)" in reported and "weather: ant/01.jpg: sun, bee/01_small.png: rain\n" in reported
    assert "    tags: ant/02.jpg: a, ant/02_flipped.jpg: none\n" in reported and "class shares of ground: train " in reported
    for catalog in (output / "catalog").iterdir():
        catalog.unlink()
    manifest = json.loads((output / dataset_format.MANIFEST).read_text())
    for shard in (shard for split in manifest["splits"].values() for shard in split["shards"]):
        shard |= {"catalog": "", "catalog_bytes": 0, "catalog_crc32c": 0}
    (output / dataset_format.MANIFEST).write_text(json.dumps(manifest))
    assert main(["leaks", str(output), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["labels"] == leaks["remaining"]["labels"]


def test_verify_detects_an_edited_leaks_file(grouped, tmp_path, capfd):
    path = pathlib.Path(shutil.copytree(grouped, tmp_path / "out")) / dataset_format.LEAKS
    text = path.read_text()
    for old, new in (('"num_pairs_across_splits": 0', '"num_pairs_across_splits": 1'), ('"num_by_bytes": 3', '"num_by_bytes": NaN'), ('"ant": {', '"ape": {'), ('"checksum"', '"check"')):
        path.write_text(text.replace(old, new, 1))
        assert path.read_text() != text and main(["verify", str(tmp_path / "out"), "--quick"]) == 1
        assert "leaks.json: " in capfd.readouterr().out, new
    path.write_text(text)
    assert main(["verify", str(tmp_path / "out"), "--quick"]) == 0


def test_groups_with_a_shared_near_duplicate_are_joined(source, tmp_path):
    pattern = "--group_pattern=[0-9][0-9]|page|cut"  # ant/00 and bee/… have separate groups by their numbers
    joined = prepare(source, tmp_path / "joined", "--duplicates=group", "--group_pattern=^[a-z]+/[0-9pc]")
    groups = {row["group"] for row in rows_of(joined).values()}
    assert leaks_of(joined)["detected"]["num_joined"] == 1 and groups == {"ant/0", "ant/1", "ant/p", "bee/1", "bee/2", "bee/p"}
    before = digest(joined)
    for path in joined.glob("made-*"):
        path.unlink()
    assert main(["repair", str(joined)]) == 0 and digest(joined) == before
    exact = prepare(source, tmp_path / "exact", "--duplicates=group", "--exact_only", "--check=header", pattern)
    assert {line["key"] for line in near_duplicate_lines(exact)} == {*NEAR_DUPLICATES[0], *NEAR_DUPLICATES[3]}
    assert leaks_of(exact)["detected"]["distance"] is None and rows_of(exact)["ant/04.jpg"]["perceptual_hash"] is None


def test_large_clusters_stay_together_without_counting_all_pairs(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(visual_groups, "_MAX_EDGES", 30)
    monkeypatch.setattr(visual_groups, "_CROWDS", (None, 4))
    picture = Image.fromarray(noise(0, 8, 8)).resize((96, 72), Image.Resampling.BICUBIC)
    files = {f"ant/{quality}.jpg": to_jpeg(picture, quality) for quality in range(30, 90)}
    output = prepare(write_files(tmp_path / "in", {**files, "bee/0.jpg": to_jpeg(picture.rotate(180))}), tmp_path / "out", "--duplicates=group")
    reported = capfd.readouterr()
    assert "at least " in reported.out and "too many images" in reported.err
    leaks, lines = leaks_of(output), near_duplicate_lines(output)
    assert {line["key"] for line in lines} == set(files) and {line["cluster"] for line in lines} == {"ant/30.jpg"}
    assert not leaks["detected"]["counts_all_pairs"] and not leaks["remaining"]["counts_all_pairs"] and leaks["remaining"]["num_pairs_across_splits"] == 0


def test_run_resumes_after_a_failure_while_writing_shards(source, grouped, tmp_path, monkeypatch):
    def fail(*unused: Any) -> None:
        raise shard_writer.StorageError("disk full")

    monkeypatch.setattr("beam_pipelines.shards.write_shards.finish_shard", fail)
    prepare(source, tmp_path / "out", "--duplicates=group", "--stratify", expected=1)
    monkeypatch.undo()
    monkeypatch.setattr("beam_pipelines.shards.hash_images.hash_some", None)  # images must not be hashed again
    prepare(source, tmp_path / "out", "--duplicates=group", "--stratify", "--resume")
    assert digest(tmp_path / "out") == digest(grouped)


@pytest.mark.parametrize("command", ["leaks", "quality"])
def test_links_to_records_are_followed_only_with_follow_links(command, tmp_path, capfd):
    for name in ("in/test.tfrecord", "elsewhere/train.tfrecord"):
        labels = {"image/class/label": 1}
        write_records(tmp_path / name, [example({"image/encoded": png(seed), **labels}) for seed in range(12)])
    (tmp_path / "in/linked").symlink_to("../elsewhere")
    (tmp_path / "in/loop").symlink_to(".")
    expected = {(): (2, "linked"), ("--follow_links",): (1, "loop")}
    for options, (num_skipped, first) in expected.items():
        code = main([command, str(tmp_path / "in"), "--json", *options])
        follows, (out, err) = bool(options), capfd.readouterr()
        assert ("train" in out) == follows and (code == 1) == (follows and command == "leaks"), options
        (warning,) = [line for line in err.splitlines() if "not read" in line]
        assert f"{num_skipped} file" in warning and f"example {first}" in warning
        assert ("--follow_links" in warning) == (not follows)


@pytest.mark.parametrize("command", ["leaks", "quality"])
def test_files_with_and_without_the_name_of_a_split_need_split_folders(command, tmp_path, capfd):
    for name in ("train-00000-of-00001", "fold0-00000-of-00001"):
        write_records(tmp_path / name, [example({"image/encoded": png(seed)}) for seed in range(3)])
    assert main([command, str(tmp_path)]) == 2 and "--split_folders=yes" in capfd.readouterr().err
    assert main([command, str(tmp_path), "--split_folders=yes"]) in (0, 1) and "fold0" in capfd.readouterr().out
    assert main([command, str(tmp_path), "--split_folders=no"]) in (0, 1)
