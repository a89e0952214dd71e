"""What a user types with data as tutorials write them, and what is said: the advice is of the source in use, and does what it says."""

import io
import pathlib
import re
import tarfile

import numpy as np
import pytest

from beam_pipelines.__main__ import main
from made_images import encode, noise
from made_records import example, write_records

SIZE = (6, 8, 3)
COUNT = 6


def record_of(index: int, pixels: bytes) -> dict:
    return {"feature": pixels, "shape": [*SIZE], "label": np.eye(3, dtype=np.float32)[index % 3]}


def write_inputs(folder: pathlib.Path) -> None:
    """One input of each kind."""
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


# case -> what is typed, what is said
REFUSED = {
    "pixels of float32": (["floats.tfrecord", "--label=none"], "feature:float32"),
    "an item with a name of ours": (["named.tfrecord", "--feature=height:float"], "such as my_height=height"),
    "a layout's feature": (["named.tfrecord", "--layout=image=imag"], "layout mapping needs imag; its first 6 records have height"),
    "one-hot in an array": (["arrays.npz"], "such as y:float[3], or multi_hot[3] for a 0 or 1 for each class"),
    "no such array": (["arrays.npz", "--label=lable"], "no 'lable'"),
    "no such member": (["samples.tar", "--label=lable"], "--label: no 'lable' in the first 6 samples"),
}
ACCEPTED = {
    "one-hot": ["one_hot.tfrecord"],
    "one-hot as numbers": ["one_hot.tfrecord", "--label=label:float[3]"],
    "one-hot as classes": ["one_hot.tfrecord", "--label=label:multi_hot[3]"],
    "one-hot in an array": ["arrays.npz", "--label=y:multi_hot[3]"],
    "an item called shape": ["named.tfrecord", "--feature=shape", "--feature=my_height=height:float"],
}


def prepare(folder: pathlib.Path, typed: list[str]) -> int:
    return main(["prepare", "--input", str(folder / typed[0]), "--output", str(folder / "out"), "--splits=train=1", *typed[1:]])


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_said_fits_the_source(tmp_path, capfd, case):
    typed, said = REFUSED[case]
    write_inputs(tmp_path)
    assert prepare(tmp_path, typed) != 0
    message = capfd.readouterr().err
    assert said in message, message
    assert "--layout" not in re.sub(r"--layout=image=imag\b", "", message)  # it is of tfrecord, and would not do here


@pytest.mark.slow(0.5)
@pytest.mark.parametrize("case", ACCEPTED)
def test_what_is_advised_does(tmp_path, case):
    write_inputs(tmp_path)
    assert prepare(tmp_path, ACCEPTED[case]) == 0
