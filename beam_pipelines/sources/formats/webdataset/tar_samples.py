"""Groups consecutive members of a tar file into samples. A sample's members have the same name up to the first dot."""

import re
from typing import Any, Collection, Iterator

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import FilePart
from beam_pipelines.errors import CONTROL, InvalidInput, printable
from beam_pipelines.images.npy_header import MAX_HEADER_BYTES
from beam_pipelines.sources.cells.json_text import read_json
from beam_pipelines.sources.files.paths import is_utf8, matches
from beam_pipelines.sources.formats.webdataset.tar_reader import FILE, FOLDER, BadTarError, Member, NoTarError, TarReader
from beam_pipelines.storage import MAX_FILE_BYTES

MAX_TEXT_BYTES = 16 << 20
_MAX_NAME = 4096
_NAME = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)", re.DOTALL)
_META = re.compile(r"(?:.*/)?__[^/]*__", re.DOTALL)


class TarSample:
    """The members of one sample.

    Attributes:
        key: The part of the names before the first dot.
        parts: Extension (the part of a name after the first dot) -> the location of the member's data.
        data: Extension -> the bytes of a member, or the first bytes of an array, if they were read.
        rejection: The reason and the message of a rejected sample, or None.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.parts: dict[str, FilePart] = {}
        self.data: dict[str, bytes] = {}
        self.rejection: tuple[str, str] | None = None

    def reject(self, reason: str, message: str) -> None:
        """Rejects the sample, unless it is already rejected."""
        self.rejection = self.rejection or (reason, message)

    def fields(self) -> dict[str, Any]:
        """Returns the fields in the sample's JSON member, or {} if there is no such member. Raises `InvalidInput` if
        the member is not a valid JSON object."""
        if "json" not in self.data:
            return {}
        try:
            fields = read_json(self.data["json"])
        except (ValueError, RecursionError) as error:
            raise InvalidInput("bad_json", f"its JSON cannot be read: {error!r:.200}") from None
        if not isinstance(fields, dict):
            raise InvalidInput("bad_json", "its JSON is not an object")
        return fields

    def text(self, extension: str) -> str:
        """Returns the text in a member, without leading and trailing line breaks. Raises `InvalidInput` if the member
        is not UTF-8."""
        try:
            return self.data[extension].decode().strip("\r\n")
        except UnicodeDecodeError:
            raise InvalidInput("bad_value", f".{extension} is not valid UTF-8") from None

    def part(self, extension: str) -> FilePart:
        """Returns the location of a member's data. Raises `InvalidInput` if the member is too large."""
        part = self.parts[extension]
        if part.num_bytes > MAX_FILE_BYTES:
            raise InvalidInput("too_large", f".{extension} has {part.num_bytes} bytes; the limit is {MAX_FILE_BYTES}")
        return part

    def is_readable(self) -> bool:
        """Returns whether the sample has valid JSON and is not rejected."""
        try:
            self.fields()
        except InvalidInput:
            return False
        return self.rejection is None


class SampleReader:
    """Reads the samples of one tar file.

    Args:
        tar: The reader of the tar file.
        name: The path of the file.
        texts: The extensions of members to read as texts.
        starts: The extensions of arrays whose first bytes are read.
        parts: The extensions of other members to read, such as images in a compressed file.
        ignore: Glob patterns of member names to ignore.

    Attributes:
        num_ignored: The number of members that do not belong to a sample.
    """

    def __init__(
        self,
        tar: TarReader,
        name: str,
        texts: Collection[str],
        starts: Collection[str] = (),
        parts: Collection[str] = (),
        ignore: tuple[str, ...] = (),
    ) -> None:
        self.num_ignored = 0
        self._tar = tar
        self._name, self._shown = name, printable(name)
        self._texts = texts
        self._parts = parts
        self._starts = starts
        self._ignore = ignore

    def __iter__(self) -> Iterator[TarSample | DeadLetter]:
        """Yields samples, and dead letters for invalid members. Raises `NoTarError` if the file is not a tar file."""
        sample: TarSample | None = None
        end: DeadLetter | None = None
        try:
            for member in self._tar:
                name = member.name.removeprefix("./")
                match = _NAME.fullmatch(name)
                if member.kind == FOLDER:
                    continue
                if match is None or _META.fullmatch(match[1]) or matches(name, self._ignore):
                    self.num_ignored += 1
                elif problem := _check_name(name):
                    yield DeadLetter(f"{self._shown}:{printable(name[:200])}", "list", *problem)
                else:
                    if sample is None or sample.key != match[1]:
                        if sample:
                            yield sample
                        sample = TarSample(match[1])
                    self._add(sample, match[2].lower(), member)
        except NoTarError:
            raise
        except BadTarError as error:
            end = DeadLetter(f"{self._shown}@{error.offset}", "list", "bad_tar", str(error))
        if sample and (sample.parts or sample.rejection):
            yield sample  # all members before the error are complete
        if end:
            yield end

    def _add(self, sample: TarSample, extension: str, member: Member) -> None:
        shown = printable(extension[:80])
        if member.kind != FILE:
            sample.reject("not_a_file", f".{shown} is {member.kind}, not a file")
            return
        if extension in sample.parts:
            sample.reject("bad_sample", f"two members are called .{shown}")
            return
        is_text, is_part = extension in self._texts, extension in self._parts and member.num_bytes <= MAX_FILE_BYTES
        if is_text and member.num_bytes > MAX_TEXT_BYTES:
            sample.reject("bad_value", f".{shown} has {member.num_bytes} bytes; the limit is {MAX_TEXT_BYTES}")
        elif is_text or is_part or extension in self._starts:
            sample.data[extension] = self._tar.read(member, None if is_text or is_part else MAX_HEADER_BYTES)
        sample.parts[extension] = FilePart(self._name, member.offset, member.num_bytes)


def _check_name(name: str) -> tuple[str, str] | None:
    """Returns the reason and the message of a dead letter for an invalid member name, or None for a valid name."""
    if not is_utf8(name):
        return "not_utf8", "the member's name is not valid UTF-8"
    if CONTROL.search(name) or len(name) > _MAX_NAME:
        return "odd_name", f"a name with control characters, or of more than {_MAX_NAME} characters"
    if name.startswith("/") or not all(part not in ("", ".", "..") for part in name.split("/")):
        return "outside", "a name that is absolute, or has an empty part, '.' or '..' in it"
    return None
