"""Tests that tables of public datasets are read with the documented options, or rejected with advice that works."""

import pathlib
import re
import shlex
import subprocess

import pytest

import tf_input
from beam_pipelines.__main__ import main
from made_images import encode, noise, write_files
from test_table_values import read_records

NUM = 12
LAYOUTS = pathlib.Path(__file__).parents[2] / "docs/layouts.md"
FILES = {
    # Folder of images, name of the image of a row, suffix of the file; name and contents of the table.
    "CelebA": ("images/{}.jpg", "list_attr_celeba.txt", f"{NUM}\nMale Young Bald \n", "{}.jpg -1  1 -1\n"),
    "CelebA's splits": ("images/{}.jpg", "list_eval_partition.txt", "", "{}.jpg 0\n"),
    "CUB": ("images/1.Bird/{}.jpg", "images.txt", "", "{0} 1.Bird/{0}.jpg\n"),
    "Flickr8k": ("{}.jpg", "Flickr8k.token.txt", "", "{0}.jpg#0\tA child .\n{0}.jpg#1\tA dog .\n"),
    "APTOS": ("images/{}.jpg", "train.csv", "id_code,diagnosis\n", "{},2\n"),
    "numbers of images": ("images/{}.jpg", "train.csv", "image_id,label\n", "{},2\n"),
    "Kaggle's clouds": ("images/{}.jpg", "train.csv", "Image_Label,EncodedPixels\n", "{0}.jpg_Fish,1 3\n{0}.jpg_Flower,1 3\n"),
    "no boxes": ("{}.jpg", "train.csv", "image,a,b,c,d,class\n", "{}.jpg,1,2,3,4,cat\n"),
}
CASES = {
    "CelebA: integer": ("CelebA", "--source table --delimiter space --skip_lines 1 --image_root images --label Bald,Young:integer", [-1, 1]),
    "CelebA: class": ("CelebA", "--source table --delimiter space --skip_lines 1 --image_root images --label Bald", "use Bald:integer"),
    "CelebA: flags": ("CelebA", "--source table --delimiter space --skip_lines 1 --image_root images --label Bald,Male:multi_label", "integer"),
    "CelebA: text": ("CelebA", "", "--source table --delimiter space --skip_lines 1 --label COLUMN:integer"),
    "CelebA: no blanks": ("CelebA", "--source table --skip_lines 1", "--delimiter space"),
    "CelebA: number": ("CelebA", "--source table", "--skip_lines 1"),
    "CelebA: splits": ("CelebA's splits", "--source table --delimiter space --column_names image,split --label none --image_root images", "by names"),
    "CUB: text": ("CUB", "", "--source table --delimiter space --column_names id,image --label none"),
    "CUB": ("CUB", "--source table --delimiter space --column_names id,image --label none --image_root images --label_pattern ([^/]+)/", [0]),
    "Flickr8k: text": ("Flickr8k", "", "--source table --delimiter tab --column_names image,caption --label caption:text[]"),
    "Flickr8k": ("Flickr8k", "--source table --delimiter tab --column_names image,caption --label caption:text[]", [b"A child .", b"A dog ."]),
    "APTOS": ("APTOS", "--image_root images --label diagnosis:integer", [2]),
    "numbers of images": ("numbers of images", "--image_root images --label label:integer", [2]),
    "Kaggle's clouds": ("Kaggle's clouds", "--label EncodedPixels:rle", r"sed -e '1s/Image_Label/image,label/' -e 's/\.jpg_/.jpg,/' "),
    "no boxes": ("no boxes", "--label objects=class", "xmin, ymin, xmax, ymax"),
}


def clouds() -> dict[str, str]:
    rows = "".join(f"{index}.jpg_Fish,1 3\n{index}.jpg_Flower,{'7 2' * (index % 2)}\n" for index in range(NUM))
    return {"clouds/train.csv": f"Image_Label,EncodedPixels\n{rows}", "names.txt": "background\nFish\nFlower\n"}


def celeba() -> dict[str, str]:
    rows = [(f"{index}.jpg", index % 2 * 2 - 1, 3 * index // NUM) for index in range(NUM)]
    attributes = "".join(f"{name},-1,{flag}\n" for name, flag, _ in rows)
    partition = "".join(f"{name},{part}\n" for name, _, part in rows)
    return {
        "celeba/list_attr_celeba.csv": f"image_id,Young,Smiling\n{attributes}",
        "celeba/list_eval_partition.csv": f"image_id,partition\n{partition}",
    }


def places() -> dict[str, str]:
    return {"places/places365_train_standard.txt": "".join(f"/{index}.jpg {index % 2}\n" for index in range(NUM))}


# Maps a directory in docs/layouts.md to its tables, the folder of its images, a function of the dataset, and the expected result.
DOCUMENTED = {
    "clouds": (clouds, "train_images", lambda dataset: dataset.features["mask"].label_names, ("background", "Fish", "Flower")),
    "celeba": (celeba, "img_align_celeba", lambda dataset: [dataset.num_examples(split) for split in ("train", "validation", "test")], [4] * 3),
    "places": (places, "data_large", lambda dataset: sorted(example["key"] for example in dataset["train"])[:2], ["0.jpg", "1.jpg"]),
}


@pytest.mark.slow(2)
@pytest.mark.parametrize("folder", DOCUMENTED)
def test_documented_commands_convert_and_read_the_table(tmp_path: pathlib.Path, monkeypatch, folder: str) -> None:
    write, images, actual, expected = DOCUMENTED[folder]
    write_files(tmp_path, {name: text.encode() for name, text in write().items()})
    write_files(tmp_path / folder / images, {f"{index}.jpg": encode(noise(index, 6, 8), "JPEG") for index in range(NUM)})
    (block,) = (block for block in re.findall(r"```sh\n(.*?)```", LAYOUTS.read_text(), re.DOTALL) if f"{folder}/" in block)
    monkeypatch.chdir(tmp_path)
    *conversions, command = block.strip().splitlines()
    for line in conversions:
        subprocess.run(line, shell=True, check=True)
    assert main(shlex.split(command)[1:]) == 0
    assert actual(tf_input.open(tmp_path / "out" / folder)) == expected


@pytest.mark.slow(1)
@pytest.mark.parametrize("case", CASES)
def test_table_is_read_or_rejected_with_advice(tmp_path: pathlib.Path, capsys, case: str) -> None:
    dataset, options, expected = CASES[case]
    image, name, header, row = FILES[dataset]
    write_files(tmp_path, {image.format(index): encode(noise(index, 6, 8), "JPEG") for index in range(NUM)})
    write_files(tmp_path, {name: "".join([header, *(row.format(index) for index in range(NUM))]).encode()})
    options = options.replace("--image_root images", f"--image_root {shlex.quote(str(tmp_path / 'images'))}")
    splits = [] if "split" in options else ["--splits=train=1"]
    code = main(["prepare", "--input", str(tmp_path / name), "--output", str(tmp_path / "out"), *splits, *shlex.split(options)])
    if isinstance(expected, str):
        assert code == 2 and expected in capsys.readouterr().err
    else:
        assert code == 0 and [record["label"] for record in read_records(tmp_path)] == [expected] * NUM
