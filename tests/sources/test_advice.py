"""Tests that error messages suggest options for the source, and that commands with these options succeed."""

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
    assert "--layout" not in re.sub(r"--layout=image=imag\b", "", message)  # an option of tfrecord only


@pytest.mark.slow(0.5)
@pytest.mark.parametrize("case", ACCEPTED)
def test_advised_command_succeeds(tmp_path, case):
    write_inputs(tmp_path)
    assert prepare(tmp_path, ACCEPTED[case]) == 0
