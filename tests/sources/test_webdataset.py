"""Tests the source `webdataset` with tar files from the packages `webdataset` and `tarfile`, and with hostile files."""

import contextlib
import gzip
import io
import json
import pathlib
import re
import tarfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import made_images
from beam_pipelines.columns.forms import parse_column, parse_labels
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import FilePart, InputRecord
from beam_pipelines.errors import UserError
from beam_pipelines.sources.formats.webdataset import tar_samples
from beam_pipelines.sources.formats.webdataset.tar_reader import BadTarError, NoTarError, TarReader
from beam_pipelines.sources.formats.webdataset.webdataset import WebDataset
from beam_pipelines.sources.registry import find_kind
from beam_pipelines.storage.spool import SpoolReader

JPEG = made_images.jpeg()
GOOD = [("a.jpg", JPEG), ("a.cls", b"1")]


def make_tar(members: list, tar_format: int = tarfile.PAX_FORMAT) -> bytes:
    """Returns the bytes of a tar file. Each member is given as (name, bytes), TarInfo or (TarInfo, bytes)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tar_format) as tar:
        for member in members:
            info, data = member if isinstance(member, tuple) else (member, None)
            if isinstance(info, str):
                info = tarfile.TarInfo(info)
            if data is not None:
                info.size = len(data)
            tar.addfile(info, io.BytesIO(data) if data is not None else None)
    return file.getvalue()


def write(path: pathlib.Path, members: list, **options: Any) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(make_tar(members, **options))
    return path


def open_source(path: Any, labels: list[str] | None = None, spool: str | None = None, **options: Any) -> WebDataset:
    top = {name: options.pop(name) for name in ("splits", "split_folders", "ignore") if name in options}
    if "features" in options:
        options["features"] = tuple(parse_column("--feature", text, "text") for text in options["features"])
    labels = None if labels is None else parse_labels(labels)
    source = SourceConfig(kind=find_kind("webdataset"), labels=labels, **options)
    return WebDataset(PrepareOptions(input=str(path), output="out", name="made", source=source, **top), spool_directory=spool)


def list_all(source: WebDataset) -> list[InputRecord | DeadLetter]:
    return [listed for part in source.parts() for listed in source.list(part)]


def stored_bytes(source: WebDataset, listed: InputRecord | FilePart) -> bytes:
    return (pathlib.Path(source.root) / listed.path).read_bytes()[listed.offset :][: listed.num_bytes]


def test_reads_files_written_by_webdataset(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    images = {f"cats/{index:04d}": made_images.jpeg(index) for index in range(10)}
    target = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    with webdataset.ShardWriter(f"{tmp_path}/made-train-%03d.tar", maxcount=4, verbose=0) as writer:
        for index, (key, image) in enumerate(images.items()):
            fields = {"caption": f"n{index}", "age": index / 2, "group": f"g{index % 2}"}
            values = {"cls": index, "json": fields, "npy": target, "seg.png": made_images.png(index), "txt": "é\n"}
            writer.write({"__key__": key, "jpg": image, **values})
    features = ["caption", "age:float", "npy:array", "seg.png:mask", "txt"]
    for path in (tmp_path, f"{tmp_path}/made-train-{{000..002}}.tar", f"{tmp_path}/made-*.tar"):
        source = open_source(path, features=features)
        listed = list_all(source)
        assert len(source.parts()) == 3 and len(listed) == 10
        assert {image.key: stored_bytes(source, image) for image in listed} == images
        assert {image.key: image.label for image in listed} == {key: str(index) for index, key in enumerate(images)}
        assert {(image.split, image.group) for image in listed} == {("train", "g0"), ("train", "g1")}
        values = {**listed[3].values}
        assert stored_bytes(source, values.pop("seg.png")) == made_images.png(3)
        assert np.array_equal(np.load(io.BytesIO(stored_bytes(source, values.pop("npy")))), target)
        assert values == {"caption": "n3", "age": 1.5, "txt": "é"}
        shapes = {feature.name: (feature.kind, feature.shape) for feature in source.features}
        assert (shapes["npy"], shapes["seg.png"], source.targets) == (("float", (2, 2, 3)), ("mask", ()), ("label",))
        assert source.num_ignored == 0 and source.label_names() == {}


@pytest.mark.parametrize(
    "tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT], ids=["ustar", "gnu", "pax"]
)
def test_reads_every_tar_format(tmp_path, tar_format):
    long = "very/" * 15 + "long/" * 15 + "n" * 80
    members = [("é.jpg", JPEG), ("é.cls", b"0"), (f"{long}.jpg", JPEG), (f"{long}.cls", b"1"), ("x/ü.x.jpg", b""), ("last.jpg", JPEG)]
    write(tmp_path / "x.tar", members, tar_format=tar_format)
    source = open_source(tmp_path, ["none"])
    listed = list_all(source)
    assert [image.key for image in listed if isinstance(image, InputRecord)] == ["é", long, "last"]
    assert [(letter.path, letter.reason) for letter in listed if isinstance(letter, DeadLetter)] == [("x.tar:x/ü", "no_image")]
    assert stored_bytes(source, listed[1]) == JPEG


MEMBER_NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=300)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(MEMBER_NAMES, st.binary(max_size=1500)), max_size=5),
    st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_finds_the_same_members_as_tarfile(members, tar_format):
    members = [(name.strip("/") + "x", data) for name, data in members]
    contents = make_tar(members, tar_format)
    expected = [(member.name, member.offset_data, member.size) for member in tarfile.open(fileobj=io.BytesIO(contents))]
    for is_seekable in (True, False):
        reader = TarReader(io.BytesIO(contents), is_seekable)
        actual = [(element.name, element.offset, element.num_bytes, reader.read(element)) for element in reader]
        assert [entry[:3] for entry in actual] == expected
        assert [item[3] for item in actual] == [data for _, data in members]


@pytest.mark.parametrize(
    "case, members, options, expected",
    [
        ("cls", [("a.jpg", JPEG), ("a.cls", b" cat\n")], {}, "cat"),
        ("label in JSON", [("a.jpg", JPEG), ("a.json", b'{"label": 3}')], {}, "3"),
        ("class in JSON", [("a.jpg", JPEG), ("a.json", b'{"class": "cat", "x": 1}')], {}, "cat"),
        ("cls before JSON", [("a.json", b'{"label": 3}'), ("a.jpg", JPEG), ("a.cls", b"4")], {}, "4"),
        ("field of --label", [("a.jpg", JPEG), ("a.json", b'{"kind": "cat"}')], {"labels": ["kind"]}, "cat"),
        ("extension of --label", [("a.jpg", JPEG), ("a.kind.txt", b"cat")], {"labels": ["kind.txt"]}, "cat"),
        ("upper-case extensions", [("a.JPG", JPEG), ("a.CLS", b"cat")], {}, "cat"),
        ("paths that start with ./", [("./a.jpg", JPEG), ("./a.cls", b"cat")], {}, "cat"),
    ],
)
def test_label_comes_from_a_member_or_a_json_field(tmp_path, case, members, options, expected):
    write(tmp_path / "x.tar", members)
    (listed,) = list_all(open_source(tmp_path, **options))
    assert (listed.key, listed.label, listed.values) == ("a", expected, None), case


def test_json_member_can_be_a_text_but_not_a_class(tmp_path):
    fields = '{"label": 3, "of": ["é"]}'
    write(tmp_path / "x.tar", [("a.jpg", JPEG), ("a.json", fields.encode() + b"\n"), ("b.jpg", JPEG), ("b.json", b"[]"), ("b.cls", b"1")])
    for features, labels, expected in (
        (["json"], ["none"], [{"json": fields}, {"json": "[]"}]),
        (["meta=json"], ["none"], [{"meta": fields}, {"meta": "[]"}]),
        (["json", "of:text[]"], None, [{"json": fields, "of": ("é",)}, "bad_json"]),
        ([], ["json:text"], [{"label": fields}, {"label": "[]"}]),
    ):
        listed = list_all(open_source(tmp_path, labels, features=features))
        assert [item.reason if isinstance(item, DeadLetter) else item.values for item in listed] == expected, (features, labels)
    for label in ("json", "json:multi_label"):
        with pytest.raises(UserError, match=r"--label=json: .*\(label, of\).*json:text"):
            open_source(tmp_path, [label])


def test_image_column_selects_the_image_member(tmp_path):
    write(tmp_path / "x.tar", [("a.seg.png", b"m"), ("a.png", b"p"), ("a.jpg", JPEG), ("a.left.jpg", b"l")])
    for column, expected in ((None, JPEG), ("png", b"p"), ("left.jpg", b"l")):
        source = open_source(tmp_path, ["none"], image_column=column)
        (listed,) = list_all(source)
        assert stored_bytes(source, listed) == expected, column


def test_array_is_the_image_only_if_no_other_member_may_be(tmp_path):
    """If an image has an unsupported format, a depth map of the same sample must not be used as the image."""
    file = io.BytesIO()
    np.save(file, np.zeros((4, 4), np.float32))
    array = ("a.npy", file.getvalue())
    alone = [array, ("a.cls", b"1"), ("a.json", b'{"of": 1}'), ("a.txt", b"t"), ("a.id", b"k")]
    write(tmp_path / "alone/x.tar", alone)
    with pytest.raises(UserError, match="--image_column=npy, --image_column=id, or --image=none"):
        open_source(tmp_path / "alone")
    for options in ({"features": ["id"]}, {"key_column": "id"}, {"image_column": "npy"}):
        source = open_source(tmp_path / "alone", **options)
        assert [stored_bytes(source, item) for item in list_all(source)] == [array[1]]
        assert source.detected.startswith("--image_column=npy") == ("image_column" not in options)
    later = [("b.npy", array[1]), ("b.cls", b"1"), ("b.raw", b"i"), ("c.npy", array[1]), ("c.cls", b"1"), ("c.jpg", JPEG)]
    write(tmp_path / "later/x.tar", [(f"{index:03d}.{name[2:]}", data) for index in range(100) for name, data in alone[:2]] + later)
    source = open_source(tmp_path / "later")
    rejected = [letter for letter in list_all(source) if isinstance(letter, DeadLetter)]
    assert [(entry.path, entry.reason) for entry in rejected] == [("x.tar:b", "ambiguous"), ("x.tar:c", "ambiguous")]
    assert "--image_column=npy" in rejected[0].message
    write(tmp_path / "named/x.tar", [array, ("a.raw", b"i"), ("a.cls", b"1")])
    source = open_source(tmp_path / "named", features=["npy:tensor"], image_column="raw")
    (listed,) = list_all(source)
    assert stored_bytes(source, listed) == b"i" and not source.detected
    assert stored_bytes(source, listed.values["npy"]) == array[1]


def test_counts_ignored_members_and_files(tmp_path):
    folder = tarfile.TarInfo("folder.d/")
    folder.type = tarfile.DIRTYPE
    names = ("README", "._a.jpg", "x/.hidden.jpg", "__info__.json", "b.txt")
    others = [(name, b"#") for name in names]
    write(tmp_path / "x.tar", [folder, *others, *GOOD])
    (tmp_path / "notes.md").write_text("#")
    source = open_source(tmp_path, ignore=("b.*",))
    assert [image.key for image in list_all(source)] == ["a"] and source.num_ignored == 6


WITH_N = {"labels": ["cls"], "features": ["n:integer"]}
B = [("b.jpg", JPEG), ("b.cls", b"1")]


@pytest.mark.parametrize(
    "case, members, options, reason",
    [
        ("missing image", [("b.cls", b"1")], {}, "no_image"),
        ("missing label", [("b.jpg", JPEG)], {}, "bad_label"),
        ("label with a line break", [("b.jpg", JPEG), ("b.cls", b"a\nb")], {}, "bad_label"),
        ("label not UTF-8", [("b.jpg", JPEG), ("b.cls", b"\xff")], {}, "bad_value"),
        ("negative label", [("b.jpg", JPEG), ("b.cls", b"-1")], {}, "bad_label"),
        ("not JSON", [*B, ("b.json", b"{")], WITH_N, "bad_json"),
        ("duplicate field", [*B, ("b.json", b'{"n": 1, "n": 2}')], WITH_N, "bad_json"),
        ("deeply nested JSON", [*B, ("b.json", b"[" * 200_000)], WITH_N, "bad_json"),
        ("huge number", [*B, ("b.json", b'{"n": ' + b"9" * 9999 + b"}")], WITH_N, "bad_json"),
        ("NaN", [*B, ("b.json", b'{"n": NaN}')], {"features": ["n:float"]}, "bad_value"),
        ("JSON list", [*B, ("b.json", b"[]")], WITH_N, "bad_json"),
        ("missing mask", B, {"features": ["seg.png:mask"]}, "bad_mask"),
        ("duplicate member", [*B, ("b.jpg", JPEG)], {}, "bad_sample"),
        ("relative path to outside", [("../../b.jpg", JPEG)], {}, "outside"),
        ("absolute path", [("/etc/b.jpg", JPEG)], {}, "outside"),
        ("empty folder name", [("x//b.jpg", JPEG)], {}, "outside"),
        ("name with a line break", [("x\ny.jpg", JPEG)], {}, "odd_name"),
        ("name not UTF-8", [("x\udcff.jpg", JPEG)], {}, "not_utf8"),
    ],
)
def test_bad_sample_is_a_dead_letter(tmp_path, case, members, options, reason):
    first = [*GOOD, ("a.json", b'{"n": 1}'), ("a.seg.png", b"m")]
    last = [("c.jpg", JPEG), ("c.cls", b"2"), ("c.json", b'{"n": 1}'), ("c.seg.png", b"m")]
    write(tmp_path / "x.tar", [*first, *members, *last], tar_format=tarfile.GNU_FORMAT)
    listed = list_all(open_source(tmp_path, **options))
    assert [image.key for image in listed if isinstance(image, InputRecord)] == ["a", "c"], case
    (bad,) = [letter for letter in listed if isinstance(letter, DeadLetter)]
    assert (bad.stage, bad.reason) == ("list", reason) and bad.path.startswith("x.tar:"), case
    assert len(bad.message.splitlines()) == len(bad.path.splitlines()) == 1


NO_FILES = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE, b"Z")


@pytest.mark.parametrize("kind", NO_FILES)
def test_links_and_devices_in_tar_files_are_dead_letters(tmp_path, kind):
    (tmp_path / "secret.jpg").write_bytes(JPEG)
    link = tarfile.TarInfo("b.jpg")
    link.type, link.linkname = kind, str(tmp_path / "secret.jpg")
    write(tmp_path / "x.tar", [*GOOD, link, ("b.cls", b"1"), ("c.jpg", JPEG), ("c.cls", b"1")])
    a, b, c = list_all(open_source(tmp_path))
    assert (a.key, c.key, b.path, b.reason) == ("a", "c", "x.tar:b", "not_a_file")


def test_links_to_outside_and_deleted_files_are_reported(tmp_path):
    outside = write(tmp_path / "outside.tar", GOOD)
    path = write(tmp_path / "in/x.tar", GOOD)
    (tmp_path / "in/link.tar").symlink_to(outside)
    (tmp_path / "in/gone.tar").symlink_to("nowhere.tar")
    (tmp_path / "in/folder").symlink_to(tmp_path)
    write(tmp_path / "in/y/y.tar", GOOD)
    for pattern in ("", "*.tar", "**/*.tar", "*/*.tar"):
        letters = [letter for letter in list_all(open_source(tmp_path / "in" / pattern)) if isinstance(letter, DeadLetter)]
        expected = {"link.tar": "outside", "gone.tar": "symlink", "folder": "outside"}
        for name in {"*.tar": ["folder"], "*/*.tar": ["link.tar", "gone.tar"]}.get(pattern, ()):
            del expected[name]
        assert {letter.path: letter.reason for letter in letters} == expected, pattern
    source = open_source(tmp_path / "in/*.tar")
    path.unlink()
    with pytest.raises(UserError, match="x.tar .*No such file"):
        list_all(source)


def test_too_large_text_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tar_samples, "MAX_TEXT_BYTES", 100)
    write(tmp_path / "x.tar", [*GOOD, ("b.jpg", JPEG), ("b.cls", b"1" * 101)])
    _, bad = list_all(open_source(tmp_path))
    assert (bad.path, bad.reason) == ("x.tar:b", "bad_value")


def header(name: str, num_bytes: int, kind: bytes = b"0", **fields: str) -> bytes:
    """Returns a tar header. Negative and very large sizes are stored in the GNU format."""
    info = tarfile.TarInfo(name)
    info.size, info.type, info.pax_headers = abs(num_bytes), kind, fields
    block = info.tobuf(tarfile.PAX_FORMAT if fields else tarfile.GNU_FORMAT)
    if num_bytes < 0:
        block = bytearray(block[-512:])
        block[124:136] = b"\xff" * 12
        block[148:156] = b"        "
        block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


HOSTILE = {
    "size beyond the end": header("b.jpg", 10**6),
    "size of 10^15": header("b.jpg", 10**15),
    "size of 2^80": header("b.jpg", 2**80),
    "negative size": header("b.jpg", -1),
    "huge size in a pax header": header("b.jpg", 0, size=str(10**30)),
    "pax header of 10^12 bytes": header("b.jpg", 10**12, b"x"),
    "long name of 10^12 bytes": header("b.jpg", 10**12, b"L"),
    "invalid pax header": header("b.jpg", 6, b"x") + b"999 a=".ljust(512, b"\0"),
    "pax header without an end": header("b.jpg", 6, b"x") + b"6 ab=c".ljust(512, b"\0"),
    "wrong checksum": b"b" + header("a.jpg", 0)[1:],
    "truncated header": header("b.jpg", 5)[:300],
    "garbage": bytes(range(256)) * 4,
}


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("compress", [False, True], ids=["plain", "gzip"])
def test_invalid_header_ends_the_file(tmp_path, case, compress):
    good = make_tar(GOOD)[: 512 + -(-len(JPEG) // 512) * 512 + 1024]
    contents = good + HOSTILE[case]
    path = tmp_path / ("x.tar.gz" if compress else "x.tar")
    path.write_bytes(gzip.compress(contents) if compress else contents)
    first, *others, bad = list_all(open_source(tmp_path, spool=str(tmp_path / "spool") if compress else None))
    too_large = ["too_large"] if compress and case.endswith("10^15") else []
    assert first.label == "1" and [other.reason for other in others] == too_large
    name, _, offset = bad.path.partition("@")
    assert (name, bad.reason) == (path.name, "bad_tar") and int(offset) >= len(good)


def test_negative_sizes_in_headers_are_rejected_or_ignored():
    with pytest.raises(BadTarError):
        list(TarReader(io.BytesIO(header("b.jpg", -1) + bytes(2048)), True))
    file = io.BytesIO(header("b.jpg", 0, size="-512") + bytes(2048))
    assert [member.num_bytes for member in TarReader(file, True)] == [0]  # an invalid size in a pax header is ignored


def test_truncated_file_gives_its_complete_samples(tmp_path):
    members = [(f"{index}.{name}", data) for index in range(3) for name, data in (("jpg", JPEG), ("cls", b"1"))]
    contents = make_tar(members)
    end = len(contents.rstrip(b"\0")) // 512 * 512 + 512
    sample_bytes = end // 3
    for length in [*range(512, end, 256), *range(600, end, 331)]:
        (tmp_path / "x.tar").write_bytes(contents[:length])
        try:
            listed = list_all(open_source(tmp_path, ["cls"]))
        except UserError as error:
            assert length < sample_bytes and ("no readable sample" in str(error) or "no 'cls'" in str(error))
            continue
        complete = [str(index) for index in range(3) if length > (index + 1) * sample_bytes - 512]
        assert [image.key for image in listed if isinstance(image, InputRecord)] == complete, length
        assert listed[-1].path.startswith("x.tar@") and listed[-1].reason == "bad_tar", length


def test_images_of_compressed_files_are_spooled(tmp_path):
    images = [made_images.jpeg(seed) for seed in range(4)]
    samples = ({"png": b"x", "jpg": image, "cls": b"1"} for image in images)
    members = [(f"{seed}.{name}", data) for seed, sample in enumerate(samples) for name, data in sample.items()]
    for name in ("x.tar.gz", "y.tgz"):
        made_images.write_files(tmp_path, {f"{name}/{name}": gzip.compress(make_tar(members))})
        source = open_source(tmp_path / name, features=["png:mask", "right=jpg:image"], spool=str(tmp_path / "spool"))
        listed, reader = list_all(source), SpoolReader(str(tmp_path / "spool"))
        for member, image in zip(listed, images, strict=True):
            parts = (member, member.values["png"], member.values["right"])
            assert [reader.read(part.spool, part.offset, part.num_bytes) for part in parts] == [image, b"x", image]
        reader.close()
        estimated = list_all(open_source(tmp_path / name))
        assert [(image.spool, image.num_bytes) for image in estimated] == [(0, len(image)) for image in images]


def test_truncated_compressed_file_gives_its_complete_samples(tmp_path):
    members = [entry for seed in range(50) for entry in ((f"{seed}.jpg", made_images.jpeg(seed)), (f"{seed}.cls", b"1"))]
    contents = gzip.compress(make_tar(members))
    (tmp_path / "x.tar.gz").write_bytes(contents[: len(contents) // 2])
    listed = list_all(open_source(tmp_path, spool=str(tmp_path / "spool")))
    assert len(listed) > 10 and listed[-1].reason == "bad_tar" and "x.tar.gz@" in listed[-1].path
    assert [letter.reason for letter in listed[:-2] if isinstance(letter, DeadLetter)] == []


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
def test_data_after_the_end_of_a_tar_file_is_a_dead_letter(tmp_path, name):
    pack = gzip.compress if name.endswith(".gz") else bytes
    first, second = make_tar(GOOD), make_tar([("b.jpg", JPEG), ("b.cls", b"2")])
    short = first.rstrip(b"\0") + bytes(1024 + -len(first.rstrip(b"\0")) % 512)  # as written by Go
    spool = str(tmp_path / "spool") if name.endswith(".gz") else None
    joined = [(first, second, b""), (short, second, b""), (first, bytes(3 << 20), b"x"), (first, bytes(512), second)]
    for case, chunks in enumerate(joined):
        made_images.write_files(tmp_path / str(case), {name: b"".join(map(pack, chunks))})
        sample, letter = list_all(open_source(tmp_path / str(case), spool=spool))
        offset = len(chunks[0]) + (len(chunks[1]) if chunks[2] else 0)
        assert (sample.key, letter.path, letter.reason) == ("a", f"{name}@{offset}", "bad_tar"), case
        assert "end of " in letter.message, case
    for case, contents in enumerate((first, short, first + bytes(2 << 20))):
        made_images.write_files(tmp_path / f"whole{case}", {name: pack(contents) + bytes(len(spool or "") * 512)})
        assert [image.key for image in list_all(open_source(tmp_path / f"whole{case}", spool=spool))] == ["a"], case


class CountingFile(io.BytesIO):
    """An in-memory file that counts the bytes that are read from it."""

    num_read = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.num_read += len(data)
        return data


def test_reads_at_most_1_mib_after_the_end_of_a_tar_file():
    contents = make_tar(GOOD)
    end = 512 + -(-len(JPEG) // 512) * 512 + 1024 + 512
    for trailing in (b"", bytes(10240), contents * 1000):
        file = CountingFile(contents + trailing)
        with contextlib.suppress(BadTarError):
            list(TarReader(file, is_seekable=True))
        assert file.num_read == 3 * 512 + min(len(contents) + len(trailing) - end, 1 << 20), len(trailing)


def test_empty_file_is_a_dead_letter(tmp_path):
    """A valid tar file without members contains blocks of zeros. A file of 0 bytes is probably a failed download."""
    made_images.write_files(tmp_path, {"a.tar": make_tar(GOOD), "b.tar": b"", "c.tar": bytes(1024)})
    listed = list_all(open_source(tmp_path))
    assert [(letter.path, letter.reason, letter.message) for letter in listed if isinstance(letter, DeadLetter)] == [("b.tar@0", "bad_tar", "the file is empty")]


def test_rejects_invalid_inputs(tmp_path):
    files = {
        "html/x.tar": b"<html>" * 200,
        "empty/x.tar": b"",
        "none/x.txt": b"",
        "mixed/b.tar": b"<html>" * 200,
        "mixed/a.tar": make_tar(GOOD),
        "unlabeled/x.tar": make_tar([("a.jpg", JPEG), ("a.json", b'{"n": 1}')]),
        "zip/x.tar": b"PK\x03\x04" + bytes(600),
        "classes/x.tar": make_tar([("images/cat/1.jpg", JPEG), ("images/dog/1.jpg", JPEG)]),
    }
    made_images.write_files(tmp_path, files)
    cases = [
        ("html", {}, "not a tar file"),
        ("zip", {}, "not a tar file"),
        ("empty", {}, "no readable sample in 1 files"),
        ("none", {}, "contains no file"),
        ("unlabeled", {}, "jpg, json, n.*--label none"),
        ("classes", {}, "--input=.*tar -xf .*x.tar.*--input=.*--label none"),
        ("unlabeled", {"labels": ["cat"]}, "no 'cat'"),
        ("unlabeled", {"labels": ["none"], "features": ["n:array"]}, "'n' .*not of kind array"),
        ("unlabeled", {"layout": "slim"}, "layout"),
        ("unlabeled", {"labels": ["none"], "has_images": False}, "--image=none: .*jpg, json, n"),
    ]
    for folder, options, message in cases:
        with pytest.raises(UserError, match=message):
            open_source(tmp_path / folder, **options)
    with pytest.raises(UserError, match="b.tar: "):
        list_all(open_source(tmp_path / "mixed"))
    with pytest.raises(NoTarError):
        list(TarReader(io.BytesIO(b"x" * 600), True))


@pytest.mark.parametrize(
    ("feature", "value", "message"),
    [
        ("n:array[2]", "a text", "column 'n' has 'a text'"),
        ("n:array[2]", [1, 2, 3], "shape .3,."),
        ("n:tensor[float32,2]", [1, 2, 3], r"column 'n' has an array of float32\[3\].*float32\[2\]"),
    ],
)
def test_json_arrays_must_have_the_requested_shape(tmp_path, feature, value, message):
    bad = [("b.jpg", JPEG), ("b.cls", b"1"), ("b.json", json.dumps({"n": value}).encode())]
    write(tmp_path / "x.tar", [*GOOD, ("a.json", b'{"n": [1, 2]}'), *bad])
    good, letter = list_all(open_source(tmp_path, features=[feature]))
    assert np.asarray(good.values["n"]).tolist() == [1, 2]
    assert letter.reason.startswith("bad_") and re.search(message, letter.message), letter.message


def test_reads_several_labels_of_a_sample(tmp_path):
    fields = {"tags": ["x", "y"], "box": [1, 2.5, 3], "id": "k1", "split": "val", "weight": 2}
    write(tmp_path / "x.tar", [("a.jpg", JPEG), ("a.json", json.dumps(fields).encode())])
    (listed,) = list_all(open_source(tmp_path, ["tags:multi_label", "box:float[3]"], key_column="id"))
    assert (listed.key, listed.split) == ("k1", "validation")
    assert listed.values == {"tags": ("x", "y"), "box": (1.0, 2.5, 3.0), "weight": 2.0}


@pytest.mark.parametrize("with_group", [(1, 2), (0, 2)])
def test_default_group_field_may_be_missing_in_some_samples(with_group, tmp_path):
    """A sample without the group field is the only example of its group."""
    fields = [{"label": 1, **({"group": "g"} if index in with_group else {})} for index in range(3)]
    write(tmp_path / "x.tar", [member for i, sample_fields in enumerate(fields) for member in ((f"{i}.jpg", JPEG), (f"{i}.json", json.dumps(sample_fields).encode()))])
    assert [image.group for image in list_all(open_source(tmp_path))] == ["g" if index in with_group else "" for index in range(3)]
    rejected = [letter for letter in list_all(open_source(tmp_path, group="group")) if isinstance(letter, DeadLetter)]
    assert [item.reason for item in rejected] == ["no_group"]
    assert not any(image.group for image in list_all(open_source(tmp_path, group="")))
