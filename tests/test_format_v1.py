"""Data sets that were written long ago open today, and today's writer writes the same bytes: format version 1, golden.

`testdata/format_v1/output` was made from `input` by the command below. If a change of the format is meant, it gets a new version
and a new folder beside this one; these files never change.
"""

import json
import pathlib

from beam_pipelines.__main__ import main
from tf_input import dataset_format

GOLDEN = pathlib.Path(__file__).parent / "testdata" / "format_v1"
OPTIONS = "--name insects --seed 7 --splits train=0.75,test=0.25 --num_shards train=3,test=1".split()


def test_todays_writer_writes_the_same_bytes(tmp_path):
    assert main(["prepare", "--input", str(GOLDEN / "input"), "--output", str(tmp_path / "out"), *OPTIONS]) == 0
    written = {path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*") if path.is_file()}
    golden = {path.relative_to(GOLDEN / "output") for path in (GOLDEN / "output").rglob("*") if path.is_file()}
    assert written == golden | {pathlib.Path(dataset_format.RUN)}
    for name in golden - {pathlib.Path(dataset_format.STATISTICS)}:
        assert (tmp_path / "out" / name).read_bytes() == (GOLDEN / "output" / name).read_bytes(), name
    assert statistics(tmp_path / "out") == statistics(GOLDEN / "output")


def statistics(directory: pathlib.Path) -> dict:
    """Without the pixels: another libjpeg may round them differently."""
    fields = json.loads((directory / dataset_format.STATISTICS).read_text())
    for split in fields["splits"].values():
        assert split.pop("pixels")["num_pixels"] > 0
    return fields


def test_todays_reader_opens_it():
    import tf_input

    insects = tf_input.open(GOLDEN / "output")
    assert (insects.manifest.name, insects.label_names) == ("insects", ("ant", "bee"))
    labels = {
        split: sorted(int(label) for _, batch in insects.batches(split, batch_size=4, image_size=8) for label in batch)
        for split in insects.splits
    }
    assert sum(map(len, labels.values())) == 13 and sorted(sum(labels.values(), [])) == [0] * 7 + [1] * 6


def test_its_index_points_at_the_images():
    for split, shards in dataset_format.read_manifest(GOLDEN / "output").splits.items():
        for shard in shards:
            data = (GOLDEN / "output" / shard.name).read_bytes()
            rows = list(dataset_format.decode_index((GOLDEN / "output" / shard.index).read_bytes()))
            assert len(rows) == shard.num_examples, split
            for row in rows:
                image = data[row.image_offset : row.image_offset + row.image_length]
                assert image[:3] in (b"\xff\xd8\xff", b"\x89PN"), (shard.name, row)
