"""Mutates images of all formats, and tests that TensorFlow can decode every image that passes the check."""

import struct
import zlib

import numpy as np
import pytest

from beam_pipelines.errors import InvalidInput
from beam_pipelines.images.images import check_image
from images.test_images import PHOTOGRAPH, SEEDS
from images.test_jpeg_oddities import unusual_jpegs
from images.test_png_files import CORRUPT_PNGS, VALID_PNGS

_NUM_MUTATIONS = 6000
_KINDS = (b"tRNS", b"PLTE", b"tEXt", b"gAMA", b"eXIf", b"IDAT", b"IHDR", b"IEND", b"iCCP", b"sBIT", b"bKGD", b"acTL", b"cHRM")


def split_chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    """Returns the chunks of a PNG file as pairs of chunk type and data."""
    chunks, position = [], 8
    while position < len(data):
        length = int.from_bytes(data[position : position + 4])
        chunks.append((data[position + 4 : position + 8], data[position + 8 : position + 8 + length]))
        position += 12 + length
    return chunks


def join_chunks(chunks: list[tuple[bytes, bytes]]) -> bytes:
    parts = [struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def mutate_chunks(data: bytes, rng: np.random.Generator) -> bytes:
    """Returns a PNG file in which chunks are changed, added, removed or reordered, but all checksums are valid."""
    chunks = split_chunks(data)
    index, other = (int(integer) for integer in rng.integers(len(chunks), size=2))
    kind, body = chunks[index]
    match rng.integers(7):
        case 0:
            chunks.insert(other, chunks[index])
        case 1:
            del chunks[index]
        case 2:
            chunks[index], chunks[other] = chunks[other], chunks[index]
        case 3:
            chunks[index] = kind, body[: rng.integers(len(body) + 1)]
        case 4:
            chunks.insert(other, (_KINDS[rng.integers(len(_KINDS))], rng.bytes(rng.integers(20))))
        case 5 if body:
            chunks[index] = kind, change_byte(body, rng)
        case _:
            index = next(location for location, (kind, _) in enumerate(chunks) if kind == b"IDAT")
            rows = zlib.decompress(b"".join(body for kind, body in chunks if kind == b"IDAT"))
            rows = change_byte(rows, rng) if rng.integers(2) else rows[: rng.integers(len(rows) + 1)]
            chunks = [chunk for chunk in chunks if chunk[0] != b"IDAT"]
            chunks.insert(index, (b"IDAT", zlib.compress(rows)))
    return join_chunks(chunks)


def change_byte(data: bytes, rng: np.random.Generator) -> bytes:
    index = rng.integers(len(data))
    return data[:index] + rng.bytes(1) + data[index + 1 :]


def mutate_bytes(data: bytes, rng: np.random.Generator) -> bytes:
    """Returns a copy of `data` in which random bytes are changed, removed, added or repeated, mostly near the start."""
    for _ in range(rng.integers(1, 5)):
        index = int(rng.integers(min(len(data), 700) if rng.random() < 0.7 else len(data)))
        length = int(rng.integers(1, 20))
        match rng.integers(4):
            case 0:
                data = data[:index] + rng.bytes(1) + data[index + 1 :]
            case 1 if len(data) > 40:
                data = data[:index] + data[index + length :]
            case 2:
                data = data[:index] + rng.bytes(length) + data[index:]
            case _:
                data = data[: index + length] + data[index:]
    return data


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("check", ["strict", "decode"])
def test_tensorflow_decodes_all_accepted_images(check, capfd):
    import tensorflow as tf

    rng, num_passed = np.random.default_rng(0), 0
    cases = [*VALID_PNGS.items(), *CORRUPT_PNGS.items(), *unusual_jpegs(PHOTOGRAPH).items()]
    names = sorted(SEEDS)
    for _ in range(_NUM_MUTATIONS):
        case = names[rng.integers(len(names))]
        mutate = mutate_chunks if "PNG" in case and rng.random() < 0.8 else mutate_bytes
        cases.append((case, mutate(SEEDS[case], rng)))
    for number, (case, data) in enumerate(cases):
        try:
            checked = check_image(data, check, full_scale=bool(number % 2))
        except InvalidInput:
            continue
        stored = data if checked.encoded is None else checked.encoded
        decoded = tf.io.decode_image(stored, channels=3, expand_animations=False)
        assert decoded.shape == (checked.height, checked.width, 3), (case, number)
        num_passed += 1
    assert num_passed > _NUM_MUTATIONS // 5
    capfd.readouterr()  # discards the warnings of libjpeg
