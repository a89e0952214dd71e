"""Images that are read in the order of the shuffle: each in one bucket, a bucket a range of keys, its bytes one stretch."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipelines import buckets
from beam_pipelines.buckets import BUCKET_BYTES, choose_num_buckets, join_bucket, route_to_buckets
from beam_pipelines.config import PrepareConfig
from beam_pipelines.light_processes import share
from beam_pipelines.ranks import shuffle_key
from beam_pipelines.input_reader import ReadContext
from beam_pipelines.read_images import read_batch
from beam_pipelines.references import LabeledImage, References, pack_images, unpack_images
from beam_pipelines.sources import Listing
from beam_pipelines.splits import SplitByGroup
from listings import make_listing, make_schema
from made_images import encode, jpeg, noise, write_files

SHARES = {"train": Fraction(3, 4), "test": Fraction(1, 4)}
CONFIG = PrepareConfig("in", "out", "made", seed=3)


def listing(num_bytes: int = 0, fractions: dict | None = SHARES) -> Listing:
    return make_listing("cat", splits=tuple(SHARES), fractions=fractions, num_bytes=num_bytes)


def listed(num_images: int, split: str | None = None) -> list[LabeledImage]:
    return [LabeledImage(f"cat/{index}", f"cat/{index}", "cat", split, index) for index in range(num_images)]


def route(images: list[LabeledImage], about: Listing) -> dict[buckets.Bucket, list[LabeledImage]]:
    packed = dict(route_to_buckets(pack_images(images), about, CONFIG))
    return {bucket: list(map(LabeledImage, *unpack_images(those))) for bucket, those in packed.items()}


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 200), st.integers(1, 50))
def test_every_image_is_in_one_bucket_of_its_split(num_images, num_buckets):
    images = listed(num_images)
    routed = route(images, listing(num_buckets * BUCKET_BYTES))
    assert sorted(image for those in routed.values() for image in those) == sorted(images)
    for (split, number), those in routed.items():
        assert 0 <= number < num_buckets
        assert {SplitByGroup(SHARES)(image.key.encode()) for image in those} == {split}


def test_where_the_source_decides_the_split_it_is_that():
    for position, split in enumerate(SHARES):
        assert {bucket[0] for bucket in route(listed(50, split), listing(fractions=None))} == {position}


def test_a_bucket_is_a_range_of_shuffle_keys():
    routed = route(listed(500, "train"), listing(7 * BUCKET_BYTES, fractions=None))
    assert sorted(routed) == [(0, number) for number in range(7)]
    keys = [[shuffle_key(3, image.key.encode()) for image in routed[bucket]] for bucket in sorted(routed)]
    for one, following in zip(keys, keys[1:]):
        assert max(one) < min(following)


def test_there_are_as_many_buckets_as_bytes_ask_for():
    for num_bytes, expected in ((0, 1), (1, 1), (BUCKET_BYTES, 1), (BUCKET_BYTES + 1, 2), (33 << 40, (33 << 40) // BUCKET_BYTES)):
        assert choose_num_buckets(listing(num_bytes)) == expected, num_bytes


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 80), st.integers(1, 10), st.randoms(use_true_random=False))
def test_the_pieces_of_a_bucket_are_joined_in_the_order_of_their_keys(num_images, num_pieces, chance):
    images = listed(num_images)
    pieces: list[list[LabeledImage]] = [[] for _ in range(num_pieces)]
    for image in chance.sample(images, num_images):
        chance.choice(pieces).append(image)
    joined = unpack_images(join_bucket([pack_images(piece) for piece in pieces if piece], seed=3))
    ordered = sorted(images, key=lambda image: shuffle_key(3, image.key.encode()))
    assert list(map(LabeledImage, *joined)) == ordered


@pytest.mark.parametrize("check", ["strict", "none"])
def test_a_bucket_is_read_once_into_one_stretch_of_a_spool_of_its_own(tmp_path, check):
    files = {f"cat/{index}.jpg": jpeg(index, 20 + 20 * index, 200) for index in range(12)}
    files |= {"cat/flat.bmp": encode(noise(), "BMP")}
    root = write_files(tmp_path / "in", files)
    context = ReadContext(str(root), check, 3, ("train",), {"train": Fraction(1)}, make_schema("cat"), 13, str(tmp_path / "spool"), True)
    images = pack_images([LabeledImage(path, path, "cat", None) for path in files])
    for attempt in (1, 2):
        rows = References.unpack(read_batch(share(context), join_bucket([images], seed=3)).references).rows
        assert rows["offset"].tolist() == [0, *np.cumsum(rows["num_bytes"])[:-1].tolist()]
        assert rows["order"].tolist() == sorted(rows["order"].tolist())
        (spool,) = set(rows["spool"].tolist())
        assert (tmp_path / "spool" / f"{spool:016x}.spool").stat().st_size == rows["num_bytes"].sum()
        assert len(list((tmp_path / "spool").iterdir())) == attempt
