"""Prepares the inputs of the read benchmark as `recordmill` datasets and in the formats of the compared libraries."""

import dataclasses
import functools
import pathlib
import random
import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks.measure import measure
from benchmarks.prepare_benchmark import prepare_command, repeat_images
from benchmarks.rivals import NUM_SHARDS, list_class_folders

LABEL = struct.Struct("<q")  # The label before the image in an ArrayRecord.
_LARGE_SIDE = 2000


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The inputs of the benchmark. Each dataset is prepared when it is first used. If the scratch folder is kept, later
    runs reuse the datasets.

    Attributes:
        scratch: The folder for the inputs.
        photos: A folder of photographs.
        tiny: A folder of tiny JPEGs.
        copies: The number of hard links to each photograph.
        num_large: The number of photographs that are enlarged.
        num_records: The number of examples in the dataset for the resume measurement.
    """

    scratch: pathlib.Path
    photos: str | None
    tiny: str | None
    copies: int
    num_large: int
    num_records: int

    @functools.cached_property
    def photo_folder(self) -> str:
        return self._repeat(self.photos, "photos", self.copies)

    @functools.cached_property
    def photo_set(self) -> str:
        return self._prepare(self.photo_folder)

    @functools.cached_property
    def short_set(self) -> str:
        return self._prepare(self.photo_folder, "--image_size=short=256", "--image_format=jpeg:90")

    @functools.cached_property
    def large_set(self) -> str:
        """The path of the dataset of photographs whose long side has 2000 pixels."""
        folder = self.scratch / f"large-{self.num_large}"
        originals = list_images(self.photos)[: self.num_large]
        if len(list_images(folder)) != len(originals):
            folder.mkdir(exist_ok=True)
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(_enlarge, originals, [folder / f"{index:04d}.jpg" for index in range(len(originals))]))
        return self._prepare(self._repeat(str(folder), "large-copies", self.copies))

    @functools.cached_property
    def tiny_set(self) -> str:
        return self._prepare(self._repeat(self.tiny, "tiny", 1))

    @functools.cached_property
    def raw_set(self) -> str:
        """The path of the dataset that stores the tiny images as raw pixels."""
        from PIL import Image

        with Image.open(list_images(self.tiny)[0]) as image:
            size = f"--image_size=exact={image.height}x{image.width}"
        return self._prepare(self._repeat(self.tiny, "tiny", 1), size, "--image_encoding=raw")

    @functools.cached_property
    def many_set(self) -> str:
        """The path of a dataset with `num_records` images. Each image has 10 x 30 pixels, about 1 KB."""
        folder = self.scratch / f"many-10x30-{self.num_records}"
        if not (folder / "labels.npy").exists():
            folder.mkdir(exist_ok=True)
            pixels = np.random.default_rng(0).integers(0, 256, (self.num_records, 10, 30, 3), dtype=np.uint8)
            np.save(folder / "images.npy", pixels)
            np.save(folder / "labels.npy", np.arange(self.num_records) % 10)
        return self._prepare(str(folder), "--source=arrays", "--image_encoding=raw")

    @functools.cached_property
    def array_records(self) -> list[str]:
        """The paths of ArrayRecord files. Each record contains a label and a photograph."""
        from array_record.python.array_record_module import ArrayRecordWriter

        paths = []
        for index, examples in enumerate(self._deal()):
            paths.append(str(self.scratch / f"photos-{self.copies}-{index:05d}.array_record"))
            if not pathlib.Path(paths[-1]).exists():
                # The documentation recommends this option for random access.
                writer = ArrayRecordWriter(paths[-1], "group_size:1")
                for path, label in examples:
                    writer.write(LABEL.pack(label) + pathlib.Path(path).read_bytes())
                writer.close()
        return paths

    @functools.cached_property
    def tars(self) -> list[str]:
        """The paths of tar files that contain a .jpg file and a .cls file for each photograph."""
        import webdataset

        paths = []
        for index, examples in enumerate(self._deal()):
            paths.append(str(self.scratch / f"photos-{self.copies}-{index:05d}.tar"))
            if not pathlib.Path(paths[-1]).exists():
                with webdataset.TarWriter(paths[-1]) as writer:
                    for number, (path, label) in enumerate(examples):
                        writer.write({"__key__": f"{number:06d}", "jpg": pathlib.Path(path).read_bytes(), "cls": label})
        return paths

    def _deal(self) -> list[list[tuple[str, int]]]:
        """Returns the photographs of each shard as (path, label), in random order."""
        files, _ = list_class_folders(self.photo_folder)
        random.Random(0).shuffle(files)
        return [files[index::NUM_SHARDS] for index in range(NUM_SHARDS)]

    def _repeat(self, source: str, name: str, copies: int) -> str:
        num_images = len(list_images(source)) * copies
        folder = self.scratch / f"{name}-{num_images}"
        if len(list_images(folder)) == num_images:
            return str(folder)
        return repeat_images(source, folder, num_images)

    def _prepare(self, folder: str, *options: str) -> str:
        """Prepares a dataset with all images in the split `train`. The number of shards is the same for all formats."""
        name = "".join(letter if letter.isalnum() else "-" for option in options for letter in option)
        output = pathlib.Path(f"{folder}-prepared{name}")
        if not (output / "manifest.json").exists():
            measure([*prepare_command(folder, str(output), "strict"), "--name=made", *options])
        return str(output)


def list_images(folder: str | pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in pathlib.Path(folder).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))


def _enlarge(source: pathlib.Path, target: pathlib.Path) -> None:
    from PIL import Image

    with Image.open(source) as image:
        scale = _LARGE_SIDE / max(image.size)
        size = (round(image.width * scale), round(image.height * scale))
        image.convert("RGB").resize(size, Image.Resampling.LANCZOS).save(target, quality=90)
