"""Detects unsupported file formats by the first bytes of a file, and suggests conversions to an image format."""

from typing import NamedTuple

HEAD_BYTES = 1024  # enough to recognize every format


class ForeignFormat(NamedTuple):
    """A file format that is not supported as an image.

    Attributes:
        name: The name of the format with an article, such as `a PDF`.
        command: A command that converts a file of this format; empty if there is no usual command.
    """

    name: str
    command: str = ""


_CAMERA = "a camera raw file"
# First bytes, their offset, and the format.
_MAGIC = (
    (b"8BPS", 0, ForeignFormat("a Photoshop file (PSD)", "magick 'FILE.psd[0]' FILE.png")),
    (b"%PDF-", 0, ForeignFormat("a PDF", "pdftoppm -png -r 150 FILE.pdf FILE")),
    (b"\xff\x0a", 0, ForeignFormat("a JPEG XL", "djxl FILE.jxl FILE.png")),
    (b"\0\0\0\x0cJXL ", 0, ForeignFormat("a JPEG XL", "djxl FILE.jxl FILE.png")),
    (b"ftypcrx ", 4, ForeignFormat(f"{_CAMERA} (CR3)", "magick FILE.cr3 FILE.jpg")),
    (b"FUJIFILMCCD-RAW", 0, ForeignFormat(f"{_CAMERA} (RAF)", "magick FILE.raf FILE.jpg")),
    (b"IIRO", 0, ForeignFormat(f"{_CAMERA} (ORF)", "magick FILE.orf FILE.jpg")),
    (b"IIRS", 0, ForeignFormat(f"{_CAMERA} (ORF)", "magick FILE.orf FILE.jpg")),
    (b"IIU\0", 0, ForeignFormat(f"{_CAMERA} (RW2)", "magick FILE.rw2 FILE.jpg")),
    (b"\x76\x2f\x31\x01", 0, ForeignFormat("an OpenEXR", "magick FILE.exr FILE.png")),
    (b"\0\0\x01\0", 0, ForeignFormat("an icon (ICO)", "magick 'FILE.ico[0]' FILE.png")),
    (b"DICM", 128, ForeignFormat("a DICOM", "magick FILE.dcm FILE.png")),
    (b"PK\x03\x04", 0, ForeignFormat("a zip archive", "unzip FILE.zip -d FILE")),
    (b"version https://git-lfs", 0, ForeignFormat("a Git LFS pointer", "git lfs pull")),
    (b"ftyp", 4, ForeignFormat("a video or another ISO media file")),
)
# A camera raw file that is a TIFF inside, such as DNG, NEF, ARW or CR2.
CAMERA_TIFF = ForeignFormat(f"{_CAMERA} (DNG, NEF, CR2 or similar)", "magick FILE.dng FILE.jpg")


def recognise_foreign(head: bytes) -> ForeignFormat | None:
    """Returns the unsupported format of a file, or None if the format is unknown.

    Args:
        head: The first bytes of the file. `HEAD_BYTES` are enough.
    """
    for magic, start, known in _MAGIC:
        if head.startswith(magic, start):
            return known
    text = head[:HEAD_BYTES].removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"<") and b"<svg" in text.lower():
        return ForeignFormat("an SVG", "rsvg-convert FILE.svg -o FILE.png")
    return ForeignFormat("HTML or XML") if text.startswith(b"<") else None
