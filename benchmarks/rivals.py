"""Implements the baselines for `recordmill prepare`: a hand-written loop, and TensorFlow Datasets.

Usage: python -m benchmarks.rivals loop FOLDER OUT --check strict --processes 2
       python -m benchmarks.rivals tfds FOLDER OUT
"""

import argparse
import io
import multiprocessing
import os
import random
import struct

NUM_SHARDS = 16


def list_class_folders(folder: str) -> tuple[list[tuple[str, int]], list[str]]:
    """Returns the class names, and a pair (path, label) for every file."""
    names = sorted(os.listdir(folder))
    files = [
        (os.path.join(folder, name, file), label)
        for label, name in enumerate(names)
        for file in os.listdir(os.path.join(folder, name))
    ]
    return files, names


def loop(folder: str, output: str, check: str, num_processes: int, short: int = 0) -> None:
    """Lists and shuffles the files. Then `num_processes` processes read and check the images and write the shards.

    The function uses neither Beam nor TensorFlow. If `short` is set, Pillow downscales the images as its documentation
    recommends. Decoding an image also checks the image.
    """
    files, _ = list_class_folders(folder)
    random.Random(0).shuffle(files)
    os.makedirs(output)
    shards = [(files[index::NUM_SHARDS], f"{output}/loop-{index:05d}", folder, check, short) for index in range(NUM_SHARDS)]
    if num_processes == 1:
        for shard in shards:
            _write_shard(*shard)
        return
    with multiprocessing.get_context("fork").Pool(num_processes) as pool:
        pool.starmap(_write_shard, shards, chunksize=1)


def make_smaller(data: bytes, short: int) -> tuple[bytes, int, int]:
    """Downscales an image so that its short side is at most `short`, and returns its bytes, height and width."""
    from PIL import Image

    image = Image.open(io.BytesIO(data))
    if min(image.size) <= short:
        image.load()
        return data, image.height, image.width
    scale = short / min(image.size)
    size = (round(image.width * scale), round(image.height * scale))
    image.draft("RGB", size)
    encoded = io.BytesIO()
    image.convert("RGB").resize(size, Image.Resampling.LANCZOS).save(encoded, "JPEG", quality=90)
    return encoded.getvalue(), size[1], size[0]


def _write_shard(files: list[tuple[str, int]], path: str, folder: str, check: str, short: int) -> None:
    import google_crc32c

    from beam_pipelines.images.images import check_image
    from beam_pipelines.tfrecord.example_encoder import ExampleEncoder
    from tf_input.dataset_format import Feature

    def masked_crc(data: bytes) -> bytes:
        crc = google_crc32c.value(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    kinds = {"height": "integer", "image": "image", "key": "text", "label": "class_label", "width": "integer"}
    names = kinds if check != "none" else ("image", "key", "label")
    encoder = ExampleEncoder([Feature(name, kinds[name]) for name in names])
    with open(path, "wb") as output:
        for file, label in files:
            with open(file, "rb") as image_file:
                image = image_file.read()
            values = {"key": os.path.relpath(file, folder).encode(), "label": label}
            if short:
                image, height, width = make_smaller(image, short)
                values |= {"height": height, "width": width}
            elif check != "none":
                checked = check_image(image, check)
                values |= {"height": checked.height, "width": checked.width}
                image = image if checked.encoded is None else checked.encoded
            example = encoder.encode(image, values)
            length = struct.pack("<Q", len(example))
            output.write(length + masked_crc(length) + example + masked_crc(example))


def tfds(folder: str, output: str) -> None:
    """Runs a GeneratorBasedBuilder according to its documentation. TensorFlow Datasets does not check images."""
    import tensorflow_datasets

    files, names = list_class_folders(folder)

    class Images(tensorflow_datasets.core.GeneratorBasedBuilder):
        VERSION = tensorflow_datasets.core.Version("1.0.0")

        def _info(self):
            features = tensorflow_datasets.features
            columns = {"image": features.Image(), "label": features.ClassLabel(names=names), "key": features.Text()}
            return tensorflow_datasets.core.DatasetInfo(builder=self, features=features.FeaturesDict(columns))

        def _split_generators(self, unused_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            for path, label in files:
                yield path, {"image": path, "label": label, "key": path}

    tensorflow_datasets.disable_progress_bar()
    Images(data_dir=output).download_and_prepare()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rival", choices=("loop", "tfds"))
    parser.add_argument("folder")
    parser.add_argument("output")
    parser.add_argument("--check", default="none")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--short", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.rival == "loop":
        loop(arguments.folder, arguments.output, arguments.check, arguments.processes, arguments.short)
    else:
        tfds(arguments.folder, arguments.output)


if __name__ == "__main__":
    main()
