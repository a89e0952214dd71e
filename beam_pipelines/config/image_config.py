"""How images are stored: frozen, checked on construction, no I/O."""

import dataclasses

from beam_pipelines.errors import UserError, require

MAX_IMAGE_PIXELS = 89_478_485  # Pillow's own limit against decompression bombs: a quarter GiB of RGB

IMAGE_FORMATS = ("keep", "jpeg", "png", "webp")
IMAGE_ENCODINGS = ("file", "raw")


@dataclasses.dataclass(frozen=True)
class ImageConfig:
    """How images are stored.

    Attributes:
        size: The size of stored images. None: as they are; ("short", n), ("long", n): made smaller, if need be, until that side has n
            pixels; ("exact", height, width): of that size in pixels, whatever their proportions.
        format: The format of stored images, one of `IMAGE_FORMATS`; `keep`: as it is, or PNG for what a record can't hold.
        quality: The quality of a JPEG or WebP that is encoded anew, 1 to 100.
        encoding: How an image is stored, one of `IMAGE_ENCODINGS`; `file`: as the bytes of an image file; `raw`: as uint8 pixels, all
            images having one size.
        keep_depth: Whether a PNG of 16 bits a channel keeps them for who reads it; else the upper 8 are read.
        backdrop: The grey value that images with alpha lie on, for who looks at them; None: their colours count as they are.
    """

    size: tuple[str, int] | tuple[str, int, int] | None = None
    format: str = "keep"
    quality: int = 95
    encoding: str = "file"
    keep_depth: bool = False
    backdrop = None

    def __post_init__(self) -> None:
        formats = ", ".join(IMAGE_FORMATS)
        require(self.format in IMAGE_FORMATS, "--image_format", self.format, f"one of {formats}")
        require(1 <= self.quality <= 100, "--image_format", f"{self.format}:{self.quality}", "a quality from 1 to 100")
        require(self.encoding in IMAGE_ENCODINGS, "--image_encoding", self.encoding, f"one of {', '.join(IMAGE_ENCODINGS)}")
        height, width = self.size[1:] if self.size and self.size[0] == "exact" else (1, 1)
        if height * width > MAX_IMAGE_PIXELS:
            raise UserError(f"--image_size=exact={height}x{width}: expected at most {MAX_IMAGE_PIXELS} pixels")
        if self.encoding == "raw" and self.format != "keep":
            raise UserError(f"--image_format={self.format} and --image_encoding=raw exclude each other; expected one of them")

        if self.keep_depth and (self.size or self.encoding == "raw" or self.format not in ("keep", "png")):
            raise UserError(
                "--keep_depth: images that are resized or converted have 8 bits; expected no --image_size, no --image_encoding and "
                "no other --image_format than png"
            )

    @property
    def is_kept(self) -> bool:
        """Whether images that a record can hold are stored as they are."""
        return dataclasses.replace(self, keep_depth=False) == ImageConfig()
