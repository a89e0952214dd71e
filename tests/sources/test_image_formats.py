"""Tests that sources read TIFF, HEIC, AVIF and JPEG 2000 images, and that other formats become dead letters."""

import io
import json
import pathlib
import tarfile

import numpy as np
import pytest
from made_images import encode, jpeg, noise, write_files
from made_tiffs import make_tiff
from PIL import Image, features

import tf_input
from beam_pipelines.__main__ import main

SIDE = 16


def prepare(folder: pathlib.Path, *options: str) -> tf_input.PreparedDataset:
    output = folder / "out"
    assert main(["prepare", "--output", str(output), "--splits=train=1", "--num_shards=1", *options]) == 0
    return tf_input.open(output)


def by_key(dataset: tf_input.PreparedDataset) -> dict[str, np.ndarray]:
    return {example["key"]: example["image"] for example in dataset["train"]}


@pytest.mark.slow(4)
def test_class_folders_of_tiffs_are_pictures(tmp_path, capsys):
    """8-bit images keep their pixels, 16-bit images only with --keep_depth, and pages after the first are reported."""
    deep = np.random.default_rng(0).integers(0, 65536, (SIDE, SIDE, 3), np.uint16)
    files = {f"cat/{index}.tif": make_tiff(noise(index), compression="LZW", tile=(16, 16)) for index in range(3)}
    files |= {"dog/pages.tiff": make_tiff(noise(3), num_pages=4), "dog/deep.TIF": make_tiff(deep, order=">"), "dog/p.tif": jpeg(5)}
    write_files(tmp_path / "in", files)
    dataset = prepare(tmp_path, "--input", str(tmp_path / "in"))
    actual = by_key(dataset)
    for index in range(3):
        np.testing.assert_array_equal(actual[f"cat/{index}.tif"], noise(index))
    np.testing.assert_array_equal(actual["dog/deep.TIF"], deep >> 8)
    assert dataset.statistics["images"]["formats"] == {"jpeg": 1, "tiff": 5}
    assert dataset.statistics["images"]["reencoded"] == {"tiff": 5}
    warnings = " ".join(dataset.statistics["warnings"])
    assert "more than one page or image: 1." in warnings and "--keep_depth" in warnings
    assert main(["verify", str(tmp_path / "out")]) == 0
    kept = prepare(tmp_path / "kept", "--input", str(tmp_path / "in"), "--keep_depth")
    np.testing.assert_array_equal(by_key(kept)["dog/deep.TIF"], deep)
    capsys.readouterr()
    assert main(["prepare", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "no"), "--check=none"]) == 2
    assert "--check=header" in capsys.readouterr().err


@pytest.mark.slow(4)
def test_tiffs_of_many_bands_are_tensors(tmp_path, capsys):
    bands = {f"{label}/{index}.tif": np.random.default_rng(index).normal(size=(8, 9 + index, 5)).astype("f4") for index, label in enumerate("abab")}
    tiffs = {name: make_tiff(values, photometric=1, compression="Deflate", is_planar=True, order=">") for name, values in bands.items()}
    write_files(tmp_path / "in", {**tiffs, "a/pixels.tif": make_tiff(noise()), "a/photo.jpg": jpeg(), "a/cut.tif": tiffs["a/0.tif"][:900]})
    dataset = prepare(tmp_path, "--input", str(tmp_path / "in"), "--max_bad_fraction=0.5")
    assert (dataset.features["image"].kind, dataset.features["image"].dtype, dataset.features["image"].shape) == ("tensor", "float32", (None, None, 5))
    actual = by_key(dataset)
    assert set(actual) == set(bands)
    for name, values in bands.items():
        np.testing.assert_array_equal(actual[name], values)
    letters = {entry["path"]: entry["message"] for entry in map(json.loads, (tmp_path / "out/dead_letters.jsonl").read_text().splitlines())}
    assert set(letters) == {"a/pixels.tif", "a/photo.jpg", "a/cut.tif"}
    assert "uint8" in letters["a/pixels.tif"] and "JPEG" in letters["a/photo.jpg"] and "TIFF" in letters["a/cut.tif"]
    assert main(["verify", str(tmp_path / "out")]) == 0
    table = "image,label\n" + "".join(f"{name},{name[0]}\n" for name in tiffs)
    write_files(tmp_path, {"all.csv": table.encode()})
    listed = prepare(tmp_path / "table", "--input", str(tmp_path / "all.csv"), "--image_root", str(tmp_path / "in"))
    assert listed.features["image"] == dataset.features["image"]


@pytest.mark.slow(4)
def test_tiffs_in_tars_and_masks_in_tiffs_are_read(tmp_path):
    write_tar(tmp_path / "x.tar", {f"{index}.{end}": data for index in range(3) for end, data in (("tif", make_tiff(noise(index))), ("cls", b"1"))})
    np.testing.assert_array_equal(by_key(prepare(tmp_path / "tar", "--input", str(tmp_path / "x.tar")))["1"], noise(1))
    ids = noise()[..., :1] % 3
    write_files(tmp_path / "in", {"images/a.tif": make_tiff(noise(), photometric=2), "masks/a.tif": make_tiff(ids, compression="LZW")})
    (example,) = prepare(tmp_path / "masks", "--input", str(tmp_path / "in"))["train"]
    np.testing.assert_array_equal(example["image"], noise())
    np.testing.assert_array_equal(example["mask"].reshape(ids.shape), ids)


def modern_files() -> dict[str, bytes]:
    """Returns an image in each format that the installed packages can write."""
    Image.init()
    files, gradient = {}, np.indices((SIDE, SIDE)).sum(axis=0)[..., None].repeat(3, -1).astype(np.uint8) * 6
    if features.check("jpg_2000"):
        files["a/1.jp2"] = encode(gradient, "JPEG2000")
    if "AVIF" in Image.SAVE:
        files["a/2.avif"] = encode(gradient, "AVIF", quality=100)
    return files


@pytest.mark.slow(3)
def test_modern_formats_are_stored_as_png(tmp_path):
    files = modern_files()
    if not files:
        pytest.skip("this build of Pillow has neither JPEG 2000 nor AVIF")
    write_files(tmp_path / "in", {**files, "b/0.jpg": jpeg()})
    dataset = prepare(tmp_path, "--input", str(tmp_path / "in"))
    gradient = np.indices((SIDE, SIDE)).sum(axis=0)[..., None].repeat(3, -1) * 6
    for name in files:
        assert np.abs(by_key(dataset)[name].astype(int) - gradient).max() <= 4, name
        assert dataset.statistics["images"]["reencoded"][name.rpartition(".")[2]] == 1
    assert main(["verify", str(tmp_path / "out")]) == 0


@pytest.mark.slow(3)
def test_heic_is_stored_upright(tmp_path):
    pillow_heif = pytest.importorskip("pillow_heif", reason="needs recordmill[heif]")
    pixels = np.indices((SIDE, 2 * SIDE)).sum(axis=0)[..., None].repeat(3, -1).astype(np.uint8) * 4
    orientation = Image.Exif()
    orientation[0x0112] = 6
    file, burst = io.BytesIO(), io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(pixels)).save(file, quality=100, exif=orientation.tobytes())
    several = pillow_heif.HeifFile()
    several.add_from_pillow(Image.fromarray(pixels))
    several.add_from_pillow(Image.fromarray(pixels))
    several.save(burst)
    write_files(tmp_path / "in", {"a/rotated.HEIC": file.getvalue(), "b/burst.heif": burst.getvalue(), "b/cut.heic": file.getvalue()[:-100]})
    dataset = prepare(tmp_path, "--input", str(tmp_path / "in"), "--max_bad_fraction=0.5")
    actual = by_key(dataset)
    assert set(actual) == {"a/rotated.HEIC", "b/burst.heif"}
    assert np.abs(actual["a/rotated.HEIC"].astype(int) - np.rot90(pixels, -1)).max() <= 8
    assert dataset.statistics["images"]["formats"] == {"heic": 2}
    assert any("more than one page or image" in warning for warning in dataset.statistics["warnings"])


def write_tar(path: pathlib.Path, files: dict[str, bytes], mode: str = "w") -> None:
    with tarfile.open(path, mode) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


ARCHIVES = {
    "class folders": ("my photos.tar", "w", "{}/{}.jpg", "mkdir -p '{0}/my photos' && tar -xf '{0}/my photos.tar' -C '{0}/my photos'", "--input='{0}/my photos'"),
    "one folder around them": ("x.tgz", "w:gz", "pets/{}/{}.jpg", "mkdir -p {0}/x && tar -xzf {0}/x.tgz -C {0}/x", "--input={0}/x"),
    "split folders": ("x.tar.gz", "w:gz", "train/{}/{}.jpg", "tar -xzf {0}/x.tar.gz -C {0}/x", "--input={0}/x,"),
}


@pytest.mark.parametrize("case", ARCHIVES)
def test_tar_of_class_folders_is_rejected_with_a_command_that_works(case, tmp_path, capsys):
    name, mode, pattern, command, option = ARCHIVES[case]
    write_tar(tmp_path / name, {pattern.format(label, index): jpeg(index) for label in ("cat", "dog") for index in range(3)}, mode)
    assert main(["prepare", "--input", str(tmp_path / name), "--output", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert command.format(tmp_path) in error and option.format(tmp_path) in error and "--label none" in error, error


def test_zip_as_class_folders_is_rejected_with_a_command(tmp_path, capsys):
    write_files(tmp_path, {"x.zip": b"PK\3\4"})
    for options in ([], ["--source=image_folder"]):
        assert main(["prepare", "--input", str(tmp_path / "x.zip"), "--output", str(tmp_path / "out"), *options]) == 2
        assert f"unzip -q {tmp_path}/x.zip -d {tmp_path}/x" in capsys.readouterr().err, options
