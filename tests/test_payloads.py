"""Image bytes that go through the shuffle come out next to their references, in the order in which shards want them."""

import random

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipelines import payloads
from beam_pipelines.payloads import BUCKET_BYTES, choose_num_buckets, group_by_bucket, pack, spool_bucket, unpack
from beam_pipelines.ranks import shuffle_orders
from beam_pipelines.references import ROW, References
from beam_pipelines.spool import SpoolReader


def make(num_images: int, num_splits: int = 1, seed: int = 0) -> tuple[References, list[bytes]]:
    source = random.Random(seed)
    keys = [f"cat/{index}".encode() for index in range(num_images)]
    images = [source.randbytes(source.randrange(0, 2000)) for _ in keys]
    rows = np.zeros(num_images, ROW)
    rows["order"] = shuffle_orders(seed, keys)
    rows["split"] = [source.randrange(num_splits) for _ in keys]
    rows["num_bytes"] = [len(image) for image in images]
    rows["crc32c"] = [google_crc32c.value(image) for image in images]
    return References(rows, keys, [b""] * num_images), images


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 60), st.integers(1, 3), st.integers(1, 100), st.integers(0, 5))
def test_every_image_is_in_one_bucket_beside_its_reference(num_images, num_splits, num_buckets, seed):
    references, images = make(num_images, num_splits, seed)
    found = {}
    for (split, number), packed in group_by_bucket(references, images, num_buckets):
        assert 0 <= number < num_buckets
        part, part_images = unpack(packed)
        assert set(part.rows["split"].tolist()) == {split}
        assert len(part) == len(part_images)
        for key, image in zip(part.keys, part_images):
            assert key not in found
            found[key] = bytes(image)
    assert found == dict(zip(references.keys, images))


def test_a_bucket_is_a_range_of_shuffle_keys():
    references, images = make(500)
    groups = dict(group_by_bucket(references, images, 7))
    assert sorted(groups) == [(0, number) for number in range(7)]
    ranges = [unpack(groups[bucket])[0].rows["order"] for bucket in sorted(groups)]
    for one, following in zip(ranges, ranges[1:]):
        assert one.max() < following.min()


def test_buckets_do_not_overflow_where_there_are_very_many():
    references, images = make(50)
    references.rows["order"][:2] = [0, 2**64 - 1]
    numbers = [number for (_, number), _ in group_by_bucket(references, images, 2**31)]
    assert min(numbers) == 0 and max(numbers) == 2**31 - 1


def test_no_bucket_has_more_bytes_than_its_bound_but_for_chance():
    mebibyte = 1 << 20
    for num_bytes, shard_bytes, expected in (
        (0, None, 1),
        (1, None, 1),
        (BUCKET_BYTES, None, 1),
        (BUCKET_BYTES + 1, None, 2),
        (33 << 40, None, (33 << 40) // BUCKET_BYTES),
        (100 * mebibyte, 10 * mebibyte, 10),
        (100 * mebibyte, 1 << 40, 4),
    ):
        assert choose_num_buckets(num_bytes, shard_bytes) == expected, (num_bytes, shard_bytes)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 80), st.integers(1, 10), st.randoms(use_true_random=False))
def test_a_bucket_is_spooled_in_the_order_of_its_keys(tmp_path_factory, num_images, num_pieces, chance):
    directory = str(tmp_path_factory.mktemp("spool"))
    references, images = make(num_images)
    members = [[] for _ in range(num_pieces)]
    for index in chance.sample(range(num_images), num_images):
        chance.choice(members).append(index)
    pieces = [pack(references.take(np.array(part, int)), [images[i] for i in part]) for part in members]
    spooled = References.unpack(spool_bucket(pieces, directory))
    rows = spooled.rows
    assert rows["order"].tolist() == sorted(references.rows["order"].tolist())
    assert rows["offset"].tolist() == [0, *np.cumsum(rows["num_bytes"])[:-1].tolist()]
    assert len(set(rows["spool"].tolist())) == 1 and rows["spool"][0] != 0
    reader = SpoolReader(directory)
    for key, row in zip(spooled.keys, rows):
        data = reader.read(int(row["spool"]), int(row["offset"]), int(row["num_bytes"]))
        assert data == images[references.keys.index(key)]
    reader.close()


def test_a_second_attempt_spools_to_a_file_of_its_own(tmp_path):
    references, images = make(3)
    attempts = [References.unpack(spool_bucket([pack(references, images)], str(tmp_path))) for _ in range(2)]
    assert len({attempt.rows["spool"][0] for attempt in attempts}) == len(list(tmp_path.iterdir())) == 2


def test_a_bucket_that_cannot_be_spooled_leaves_no_file_open(tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr("beam_pipelines.spool.SpoolWriter.append", lambda *unused: 1 / 0)
    monkeypatch.setattr("beam_pipelines.spool.SpoolWriter.close", lambda self: closed.append(self))
    with pytest.raises(ZeroDivisionError):
        payloads.spool_bucket([pack(*make(3))], str(tmp_path))
    assert len(closed) == 1
