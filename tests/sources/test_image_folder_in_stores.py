"""Tests that image folders in object stores are listed in parallel and in pages, with the same result as on disk."""

import errno
import threading
from typing import Iterator

import pytest
from test_list_images import list_on_runner, read_dead_letters, read_runs

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import StorageError, UserError
from beam_pipelines.sources.files import file_listing
from beam_pipelines.sources.files.file_listing import FileListing
from beam_pipelines.sources.formats.image_folder.image_folder import ImageFolder
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.sources.guess import guess_source
from beam_pipelines.sources.listing.part_listing import list_side_by_side
from beam_pipelines.storage.object_stores import object_listing
from beam_pipelines.storage.files import files_at
from made_images import write_files
from made_references import list_parts, make_run
from object_stores import StoreServer, connected_to, shared_server, upload_files


@pytest.fixture(scope="module")
def server() -> Iterator[StoreServer]:
    with connected_to(shared_server("s3")) as server:
        yield server


def make_job(root: object, **options: object) -> PrepareOptions:
    return PrepareOptions(str(root), "out", "made", **options)


def list_folder(root: str, options: dict) -> object:
    """Returns the chosen class folders, the inputs, the classes and the number of ignored files, or the error."""
    source = ImageFolder(make_job(root, **options))
    try:
        chosen = source.choose_class_folders()
        inputs, part = list_parts(source, source.parts())
        part.problems.unexpected_files.reject(source.root)
    except UserError as error:
        return str(error).replace(source.root, "in")
    actual = sorted((item._replace(num_bytes=0) if isinstance(item, InputRecord) else item for item in inputs), key=str)
    return chosen, actual, part.schema.known_names("label"), part.counts.num_ignored


IGNORE = {"ignore": ("*.txt", "README", "tulip/raw", "raw")}
# Maps each case to paths, options, and words of the error message on a disk and in a store.
LAYOUTS = {
    "classes": (["rose/1.jpg", "rose/2.JPG", "tulip/red/1.png", "tulip/blue/1.webp", "tulip/1.gif"], {}, ""),
    "splits": (["train/rose/1.jpg", "train/tulip/2.jpg", "val/rose/1.jpg", "Testing/tulip/deep/4.jpg"], {}, ""),
    "ignored": (
        ["rose/1.jpg", ".git/x/1.jpg", "rose/.hidden", "rose/Thumbs.db", "__MACOSX/rose/1.jpg", "rose/notes.txt", "README"],
        IGNORE,
        "",
    ),
    "readme files": (["rose/1.jpg", "README.md", "LICENSE", "SHA256SUMS", "rose/README.txt", "rose/1.jpg.md5"], {}, ""),
    "ignored classes": (["rose/1.jpg", "tulip/raw/1.jpg", "tulip/red/1.jpg", "lily/.keep", "lily/white/1.jpg", "raw/x/1.jpg"], IGNORE, ""),
    "classes named license": (["license/1.jpg", "notice/SUMS/1.jpg", "rose/license", "rose/1.jpg"], {}, ""),
    "unusual names": (["cafe\u0301/e\u0301.jpg", "a b/c&d=+%20.jpg", "日本/文 字.jpg", "rose/a..jpg"], {}, ""),
    "sessions": ([f"{label}/session{number}/{index}.jpg" for label in ("cat", "dog") for number in range(2) for index in range(7)], {}, ""),
    "nested classes": (["animals/cat/1.jpg", "plants/rose/1.jpg"], {}, ""),
    "doubled splits": (["train/train/cat/1.jpg", "test/test/cat/1.jpg"], {}, ""),
    "copies": (["yes/1.jpg", "no/1.jpg", "x/yes/1.jpg", "x/no/1.jpg"], {}, "--ignore='x'"),
    "thumbnails": (["cat/@eaDir/1.jpg/2.jpg", "cat/1.jpg", "dog/1.jpg"], {}, ""),
    "image beside classes": (["rose/1.jpg", "2.jpg"], {}, "'2.jpg'"),
    "image beside the classes of a split": (["train/rose/1.jpg", "train/2.jpg"], {}, "'train/2.jpg'"),
    "mixed names": (["train/rose/1.jpg", "extra/2.jpg"], {}, "'extra' is not"),
    "text": (["rose/1.jpg", "rose/2.txt"], {}, "(.txt): rose/2.txt"),
    "other files": (["rose/1.jpg", "a/2.txt", "b/3.done", "x.md"], {}, "(.done, .md, .txt): a/2.txt, b/3.done, x.md"),
    "empty class": (["rose/1.jpg", "tulip/.keep"], {}, "'tulip' in 'tulip/'"),
    "no image": (["rose/.keep"], {}, "contains no image"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_object_store_lists_the_same_as_a_local_folder(server, tmp_path, monkeypatch, layout):
    monkeypatch.setattr(object_listing, "PAGE_OBJECTS", 3)
    paths, options, message = LAYOUTS[layout]
    files = dict.fromkeys(paths, b"x")
    in_store, on_disk = (list_folder(str(root), options) for root in (upload_files(server, files), write_files(tmp_path, files)))
    assert in_store == on_disk and isinstance(in_store, str) == bool(message)
    assert not message or message in in_store


def test_listing_includes_file_sizes(server):
    root = upload_files(server, {"rose/1.jpg": b"12345", "rose/2.jpg": b""})
    source = ImageFolder(make_job(root))
    assert [(image.path, image.num_bytes) for image in source.list(*source.parts())] == [("rose/1.jpg", 5), ("rose/2.jpg", 0)]


def test_listing_requests_pages_only_when_needed(server, monkeypatch):
    monkeypatch.setattr(object_listing, "PAGE_OBJECTS", 10)
    root = upload_files(server, {f"rose/{index:03d}.jpg": b"x" for index in range(95)})
    store, pages = type(files_at(root)), []
    ask = store._page
    monkeypatch.setattr(store, "_page", lambda self, *args: pages.append(args) or ask(self, *args))
    source = ImageFolder(make_job(root))
    images = iter(source.list(*source.parts()))
    for _ in range(12):
        next(images)
    assert len(pages) <= 4, "top-level folders and the pages needed"
    assert len(list(images)) == 83


def test_parts_are_name_ranges_with_at_most_one_extra_page_each(server, monkeypatch):
    monkeypatch.setattr(object_listing, "PAGE_OBJECTS", 10)
    names = [f"c{label:02d}/{index}.jpg" for label in range(30) for index in range(3)]
    names += ["c05-/1.jpg", "c05.x/1.jpg", "c05/sub/1.jpg", "a-b/1.jpg", "a/b/1.jpg", "c07//1.jpg", "README", "\u00e9/1.jpg"]
    source = ImageFolder(make_job(upload_files(server, dict.fromkeys(names, b"x"))))
    inputs = []
    for num_parts in (1, 4):
        monkeypatch.setattr(file_listing, "MAX_PARTS", num_parts)
        store, pages = type(files_at(source.root)), []
        ask = store._page
        with monkeypatch.context() as patch:
            patch.setattr(store, "_page", lambda self, *args: pages.append(args) or ask(self, *args))
            parts = source.parts()
            num_asked = len(pages)
            actual, merged = list_parts(source, parts[::-1])
        assert len(parts) == num_parts and num_asked == 4 + (num_parts > 1), "pages of top-level folders and a sample of names"
        assert len(pages) - num_asked <= -(-len(names) // 10) + num_parts
        inputs.append((sorted(map(repr, actual)), merged))
    monkeypatch.setattr(object_listing, "PAGE_OBJECTS", len(names))
    pages.clear()
    with monkeypatch.context() as patch:
        patch.setattr(store, "_page", lambda self, *args: pages.append(args) or ask(self, *args))
        actual, merged = list_parts(source, source.parts())
    assert len(pages) == 3, "top-level folders, a sample of names, and a single part"
    inputs.append((sorted(map(repr, actual)), merged))
    assert inputs[0] == inputs[1] == inputs[2] and len(inputs[0][0]) == len(names) - 1


def test_parts_are_listed_in_parallel_with_the_same_requests(server, tmp_path, monkeypatch):
    monkeypatch.setattr(object_listing, "PAGE_OBJECTS", 10)
    names = [f"c{label:02d}/{index}.jpg" for label in range(16) for index in range(4)]
    root = upload_files(server, dict.fromkeys([*names, "c03//1.jpg"], b"x"))
    store, pages, barrier = type(files_at(root)), [], threading.Barrier(3, timeout=60)
    ask = store._page
    actual = {}
    for in_threads in (False, True):

        def page(self, bucket, prefix, delimiter, token, first):
            pages.append(in_threads)
            if in_threads and first and not token:  # first page of a part
                barrier.wait()
            return ask(self, bucket, prefix, delimiter, token, first)

        monkeypatch.setattr(store, "_page", page)
        monkeypatch.setattr(file_listing, "MAX_PARTS", 4)  # the first part has no start name
        job = make_run(tmp_path / f"{in_threads}", input=root, lists_in_threads=in_threads)
        list_source = list_on_runner(job, server.flags)
        (listing,) = list_source["listing"]
        keys = sorted(key for run in read_runs(list_source, job) for key in run.keys)
        actual[in_threads] = keys, read_dead_letters(list_source["dead_letters"], job), listing, list_source["counts"]
    assert actual[True] == actual[False] and len(actual[True][0]) == len(names)
    assert pages.count(True) == pages.count(False)


def test_error_in_one_part_stops_the_others(server, tmp_path, monkeypatch):
    names = [f"c{label}/{index}.jpg" for label in range(4) for index in range(4)]
    job = make_run(tmp_path, input=upload_files(server, dict.fromkeys(names, b"x")), lists_in_threads=True)
    store, has_begun = type(files_at(job.options.input)), threading.Event()
    monkeypatch.setattr(object_listing, "PAGE_OBJECTS", 4)
    parts = ImageFolder(job.options).parts()
    assert len(parts) > 1
    objects = [(f"{job.options.input.partition('://')[2].partition('/')[2]}/c0/{index}.jpg", 1) for index in range(1000)]

    def page(self, bucket, prefix, delimiter, token, first):
        if not first:  # this part never ends
            has_begun.set()
            return object_listing.Page(objects, [], "and so on")
        assert has_begun.wait(60)
        raise PermissionError(errno.EACCES, "no more of it")

    monkeypatch.setattr(store, "_page", page)
    with pytest.raises(StorageError, match="no more of it"):
        list(list_side_by_side(*job, parts))


ODD_NAMES = ["/lily/1.jpg", "rose//1.jpg", "rose/./1.jpg", "rose/../tulip/1.jpg", "//1.jpg"]


def test_unusual_object_names_are_read_unless_they_are_invalid_paths(server):
    valid = [f"rose/{name}.jpg" for name in ("a%20b", "a%2Fb", "a?b", "a#b", "a\\b", "日本", "a;b=c&d", "a..")]
    root = upload_files(server, dict.fromkeys([*valid, *ODD_NAMES, "tulip/1.jpg", "empty/"], b"not looked at"))
    source = ImageFolder(make_job(root))
    actual, _ = list_parts(source, source.parts())
    assert sorted(image.path for image in actual if isinstance(image, InputRecord)) == sorted([*valid, "tulip/1.jpg"])
    letters = {letter.path: letter.reason for letter in actual if isinstance(letter, DeadLetter)}
    assert letters == dict.fromkeys(ODD_NAMES, "odd_name")
    assert guess_source(root).kind.name == "image_folder"
    listing = FileListing(Root(root), ())
    assert listing.top_level() == (["empty", "rose", "tulip"], [])
    walked = [*listing.walk()]
    assert {letter.path for letter in walked if isinstance(letter, DeadLetter)} == set(ODD_NAMES)
