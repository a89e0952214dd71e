"""The configuration of stored images."""

import dataclasses

from beam_pipelines.errors import UserError, did_you_mean, require

MAX_IMAGE_PIXELS = 89_478_485  # Pillow's limit against decompression bombs: a quarter GiB of RGB pixels.

IMAGE_FORMATS = ("keep", "jpeg", "png", "webp")
IMAGE_ENCODINGS = ("file", "raw")


@dataclasses.dataclass(frozen=True)
class ImageConfig:
    """The configuration of stored images.

    Attributes:
        size: The size of stored images. ("short", n) and ("long", n) shrink larger images until the shorter or longer
            side has n pixels. ("exact", height, width) resizes all images to that size in pixels, without preserving
            the aspect ratio. None keeps the original size.
        format: The format of stored images, one of `IMAGE_FORMATS`. `keep` keeps the original format if a record can
            contain it, and uses PNG otherwise.
        quality: The quality of re-encoded JPEG and WebP images, from 1 to 100.
        encoding: The encoding of stored images, one of `IMAGE_ENCODINGS`. `file` stores the bytes of an image file.
            `raw` stores uint8 pixels, and requires that all images have the same size.
        keep_depth: Whether readers get all 16 bits of 16-bit PNG images. Otherwise, readers get the upper 8 bits.
        backdrop: The gray value of the background on which transparent images are composited for perceptual hashes.
            None ignores the alpha channel.
    """

    size: tuple[str, int] | tuple[str, int, int] | None = None
    format: str = "keep"
    quality: int = 95
    encoding: str = "file"
    keep_depth: bool = False
    backdrop = None

    def __post_init__(self) -> None:
        formats = ", ".join(IMAGE_FORMATS)
        near = did_you_mean(self.format, IMAGE_FORMATS)
        require(self.format in IMAGE_FORMATS, "--image_format", self.format, f"one of {formats}{near}")
        require(1 <= self.quality <= 100, "--image_format", f"{self.format}:{self.quality}", "a quality from 1 to 100")
        require(self.encoding in IMAGE_ENCODINGS, "--image_encoding", self.encoding, f"one of {', '.join(IMAGE_ENCODINGS)}")
        height, width = self.size[1:] if self.size and self.size[0] == "exact" else (1, 1)
        if height * width > MAX_IMAGE_PIXELS:
            raise UserError(
                f"--image_size=exact={height}x{width} is too large. Give at most {MAX_IMAGE_PIXELS} pixels."
            )
        if self.encoding == "raw" and self.format != "keep":
            raise UserError(f"--image_format={self.format} and --image_encoding=raw cannot be used together. Give only one of them.")

        if self.keep_depth and (self.size or self.encoding == "raw" or self.format not in ("keep", "png")):
            raise UserError(
                "--keep_depth: resized and converted images have only 8 bits. Omit --image_size and --image_encoding, and use no "
                "--image_format other than png."
            )

    @property
    def is_kept(self) -> bool:
        """Whether image files are stored without re-encoding, if records can contain their format."""
        return dataclasses.replace(self, keep_depth=False) == ImageConfig()
