"""Tests that error messages suggest options for the source, and that commands with these options succeed."""

import io
import json
import pathlib
import shlex
import tarfile

import numpy as np
import pyarrow as pa
import pytest

from beam_pipelines.__main__ import main
from made_arrays import idx_file
from listed_rows import to_parquet
from made_images import encode, jpeg, noise, write_files
from made_records import example, write_records

SIZE = (6, 8, 3)
COUNT = 6


def record_of(index: int, pixels: bytes) -> dict:
    return {"feature": pixels, "shape": [*SIZE], "label": np.eye(3, dtype=np.float32)[index % 3]}


def write_inputs(folder: pathlib.Path) -> None:
    """Writes one input file of each kind."""
    images = np.stack([noise(index, *SIZE[:2]) for index in range(COUNT)])
    write_records(folder / "one_hot.tfrecord", [example(record_of(i, image.tobytes())) for i, image in enumerate(images)])
    floats = (images / 255).astype(np.float32)
    write_records(folder / "floats.tfrecord", [example(record_of(i, image.tobytes())) for i, image in enumerate(floats)])
    named = [{"image": encode(image, "PNG"), "label": 1, "shape": "round", "height": 1.5} for image in images]
    write_records(folder / "named.tfrecord", map(example, named))
    np.savez(folder / "arrays.npz", images=images, y=np.eye(3)[np.arange(COUNT) % 3])
    with tarfile.open(folder / "samples.tar", "w") as tar:
        for index, image in enumerate(images):
            for name, data in ((f"{index}.png", encode(image, "PNG")), (f"{index}.cls", b"1")):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


# Maps each case to its arguments and words of the error message.
REJECTED = {
    "float32 pixels": (["floats.tfrecord", "--label=none"], "feature:float32"),
    "feature with a reserved name": (["named.tfrecord", "--feature=height:float"], "such as my_height=height"),
    "misspelled feature in a layout": (["named.tfrecord", "--layout=image=imag"], "layout mapping needs imag; "),
    "one-hot labels in an array": (["arrays.npz"], "such as y:float[3], or multi_hot[3] for a 0 or 1 for each class"),
    "misspelled array": (["arrays.npz", "--label=lable"], "no 'lable'"),
    "misspelled member": (["samples.tar", "--label=lable"], "--label: no 'lable'"),
}
ACCEPTED = {
    "one-hot labels": ["one_hot.tfrecord"],
    "one-hot labels as floats": ["one_hot.tfrecord", "--label=label:float[3]"],
    "one-hot labels as classes": ["one_hot.tfrecord", "--label=label:multi_hot[3]"],
    "one-hot labels in an array": ["arrays.npz", "--label=y:multi_hot[3]"],
    "feature called shape": ["named.tfrecord", "--feature=shape", "--feature=my_height=height:float"],
}


def prepare(folder: pathlib.Path, arguments: list[str]) -> int:
    return main(["prepare", "--input", str(folder / arguments[0]), "--output", str(folder / "out"), "--splits=train=1", *arguments[1:]])


@pytest.mark.parametrize("case", REJECTED)
def test_error_message_fits_the_source(tmp_path, capfd, case):
    arguments, expected = REJECTED[case]
    write_inputs(tmp_path)
    assert prepare(tmp_path, arguments) != 0
    message = capfd.readouterr().err
    assert expected in message, message
    assert "--layout" in str(arguments) or "--layout" not in message  # an option of tfrecord only


@pytest.mark.slow(0.5)
@pytest.mark.parametrize("case", ACCEPTED)
def test_advised_command_succeeds(tmp_path, case):
    write_inputs(tmp_path)
    assert prepare(tmp_path, ACCEPTED[case]) == 0


CLASS_DICT = b"name,r,g,b\nsky,0,0,192\nroad,128,64,128\n"
COLORS = encode(np.array([[[0, 0, 192], [128, 64, 128]]], np.uint8).repeat(16, 0).repeat(8, 1), "PNG")
FLAGS = b"filename, cat, dog\n1.jpg, 1, 0\n2.jpg, 0, 1\n"
SIGNS = b"Filename;Width;ClassId\n1.ppm;16;%d\n2.ppm;16;%d\n"
SUBMISSION = b"image_id,grade\n2.jpg,0\n"
LESIONS = b"lesion_id,image_id,dx\n" + b"".join(b"HAM_%d,ISIC_%d,%s\n" % (index, index, (b"nv", b"mel")[index % 2]) for index in range(8))


def images(*names: str) -> dict[str, bytes]:
    """Returns an image for each name: PPM if the name ends with `.ppm`, otherwise JPEG."""
    return {name: encode(noise(index), "PPM") if name.endswith(".ppm") else jpeg(index) for index, name in enumerate(names)}


def of_hub(has_labels: bool) -> bytes:
    """Returns a Parquet file of Hugging Face. In a split without labels, all labels are -1."""
    features = {"image": {"_type": "Image"}, "label": {"names": ["tench", "goldfish"], "_type": "ClassLabel"}}
    rows = [{"image": {"bytes": jpeg(index), "path": f"{index}.jpg"}, "label": index % 2 if has_labels else -1} for index in range(4)]
    table = pa.Table.from_pylist(rows).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    return to_parquet(table)


# Maps each case to files below `root`, options, and the options that the error message advises instead of these options.
LAYOUTS = {
    "table beside folders of images": (
        {**images("train_images/1.jpg", "test_images/2.jpg"), "train.csv": b"image_id,grade\n1.jpg,3\n", "sample_submission.csv": SUBMISSION},
        [],
        ["--input={root}/train.csv --image_root={root}/train_images --image_column=image_id --label=grade"],
    ),
    "HAM10000": (
        {**images(*(f"HAM_images_part_{1 + index % 2}/ISIC_{index}.jpg" for index in range(8))), "HAM_metadata.csv": LESIONS},
        [],
        [
            "--input={root}/HAM_metadata.csv --image_root={root}/HAM_images_part_1 --image_root={root}/HAM_images_part_2 "
            "--image_column=image_id --image_suffix=.jpg --label=dx"
        ],
    ),
    "GTSRB": (
        {**images("0/1.ppm", "0/2.ppm", "1/1.ppm", "1/2.ppm"), "0/GT-0.csv": SIGNS % (0, 0), "1/GT-1.csv": SIGNS % (1, 1)},
        [],
        ["--input='{root}/**/*.csv' --source=table --image_column=Filename --label=ClassId"],
    ),
    "one-hot classes from Roboflow": (
        {**images("train/1.jpg", "train/2.jpg", "valid/1.jpg", "valid/2.jpg"), "train/_classes.csv": FLAGS, "valid/_classes.csv": FLAGS},
        [],
        ["--input='{root}/**/_classes.csv' --source=table --image_column=filename --label=cat,dog:one_hot"],
    ),
    "multi-label classes": (
        {**images("pics/1.jpg", "pics/2.jpg"), "rows.csv": FLAGS.replace(b"0, 1", b"1, 1")},
        ["--source=image_folder"],
        ["--input={root}/rows.csv --image_root={root}/pics --image_column=filename --label=cat,dog:multi_label"],
    ),
    "list beside a folder of images": (
        {**images("images/1.jpg"), "train.txt": b"images/1.jpg 3\n"},
        [],
        ["--source=text --input={root}/train.txt --image_root={root}"],
    ),
    "copy of split folders": (
        images(*(f"{copy}{split}/{label}/1.jpg" for copy in ("", "chest_xray/") for split in ("train", "test", "val") for label in "ab")),
        [],
        ["--ignore='chest_xray'"],
    ),
    "copy of class folders": (
        images("yes/1.jpg", "no/1.jpg", "brain/yes/1.jpg", "brain/no/1.jpg"),
        [],
        ["--ignore='brain'", "--class_folder_depth=last", "--class_folder_depth=all"],
    ),
    "split without classes": (images("train/cat/images/1.jpg", "train/dog/images/1.jpg", "val/images/1.jpg"), [], ["--ignore='val'"]),
    "split folders in split folders": (
        images("seg_train/seg_train/sea/1.jpg", "seg_test/seg_test/sea/1.jpg"),
        [],
        ["--split_folders=yes", "--split_folders=no"],
    ),
    "classes that are no splits": (images("cat/1.jpg", "dog/2.jpg"), ["--split_folders=yes"], ["'cat', 'dog' are read as splits. Omit --split_folders=yes"]),
    "copies of array files in folders": (
        {
            f"{place}t10k-{name}.idx{array.ndim}-ubyte": idx_file(array)
            for name, array in (("images", np.zeros((6, 5, 7), np.uint8)), ("labels", np.arange(6, dtype=np.uint8)))
            for place in ("", f"t10k-{name}/")
        },
        [],
        ["--ignore='*/*'"],
    ),
    "Parquet with a split without labels": (
        {f"{split}-00000-of-00001.parquet": of_hub(split != "test") for split in ("train", "validation", "test")},
        [],
        ["--max_bad_fraction=0.34"],
    ),
    "misspelled side of a box": (
        {**images("1.jpg", "2.jpg"), "rows.csv": b"filename,xmn,ymin,xmax,ymax,class\n1.jpg,0,0,5,5,a\n2.jpg,0,0,5,5,b\n"},
        ["--input={root}/rows.csv"],
        ["--rows=images"],
    ),
    "another image suffix": (
        {**images("pics/1.jpg", "pics/2.jpg"), "rows.csv": b"image,label\n1,a\n2,b\n"},
        ["--input={root}/rows.csv", "--image_root={root}/pics", "--image_suffix=.png"],
        ["--image_suffix=.jpg"],
    ),
    "colors of masks": (
        {"pics/1.jpg": jpeg(1), "colored/1.png": COLORS, "class_dict.csv": CLASS_DICT},
        [],
        ["--source=masks --mask_colors={root}/class_dict.csv"],
    ),
}
WITH_SPLITS = {"copies of array files in folders", "Parquet with a split without labels", "one-hot classes from Roboflow", "copy of split folders", "split without classes", "split folders in split folders"}
RENAMED = {"colors of masks": {"pics": "images", "colored": "masks"}}  # what users have to rename before the advised command works


def estimate(root: pathlib.Path, options: list[str]) -> int:
    """Runs `prepare --estimate`, which only lists the input."""
    command = ["prepare", "--input", str(root), "--output", f"{root}-out", "--estimate", *options]
    return main([part for part in command if not any(option.startswith("--input=") for option in options) or part not in ("--input", str(root))])


@pytest.mark.parametrize("case", LAYOUTS)
def test_advised_command_reads_the_layout(tmp_path, case, capsys):
    files, options, advised = LAYOUTS[case]
    root = write_files(tmp_path / "in", files)
    options = [option.format(root=root) for option in options]
    assert estimate(root, options) == 2
    message = capsys.readouterr().err
    kept = [option for option in options if option.startswith(("--input", "--image_root"))]
    for name, new in RENAMED.get(case, {}).items():
        (root / name).rename(root / new)
    for advice in advised:
        assert advice.format(root=root) in message, message
        advised_options = [] if " Omit " in advice else shlex.split(advice.format(root=root))
        shares = [] if case in WITH_SPLITS and advice != "--split_folders=no" else ["--splits=train=1"]
        assert estimate(root, [*kept, *advised_options, *shares]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    "option, source", [("--mask_suffix=_part", "masks"), ("--record_layout=image:uint8[2,2,3]", "fixed_length"), ("--class_folder_depth=1", "image_folder")]
)
def test_option_of_one_format_determines_the_format(tmp_path, capsys, option, source):
    write_files(tmp_path / "in", {"a.jpg": jpeg(), "a_part.png": COLORS})
    estimate(tmp_path / "in", [option])
    assert f"--source={source}, detected from {option.partition('=')[0]}" in capsys.readouterr().err
