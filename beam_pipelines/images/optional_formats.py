"""Opens images in formats that need the package extra `recordmill[heif]`, or a codec that some builds of Pillow lack."""

import io
from typing import TYPE_CHECKING, Callable

from beam_pipelines.errors import InvalidInput

if TYPE_CHECKING:
    from PIL import ImageFile

OPTIONAL_FORMATS = frozenset({"heic", "avif", "jp2"})


def optional_opener(image_format: str) -> Callable[[io.BytesIO], "ImageFile.ImageFile"]:
    """Returns the class that opens images in one of `OPTIONAL_FORMATS`.

    Raises:
        InvalidInput: A package is missing. The message names the command that installs it.
    """
    try:
        return {"heic": _heic, "avif": _avif, "jp2": _jp2}[image_format]()
    except ImportError:
        raise InvalidInput(
            "bad_image",
            f"{image_format.upper()}: a package that reads this format is missing. Install it on each machine that runs `prepare`: "
            "pip install 'recordmill[heif]'. Or convert the images, for example with: "
            f"magick mogrify -format {'png' if image_format == 'jp2' else 'jpg'} *.{image_format}",
        ) from None


def _heic() -> Callable[[io.BytesIO], "ImageFile.ImageFile"]:
    from pillow_heif import HeifImageFile

    return HeifImageFile


def _avif() -> Callable[[io.BytesIO], "ImageFile.ImageFile"]:
    from PIL import AvifImagePlugin  # Pillow has this module since version 11.3.

    if not AvifImagePlugin.SUPPORTED:
        raise ImportError("Pillow was built without AVIF")
    return AvifImagePlugin.AvifImageFile


def _jp2() -> Callable[[io.BytesIO], "ImageFile.ImageFile"]:
    from PIL import Jpeg2KImagePlugin, features

    if not features.check("jpg_2000"):
        raise ImportError("Pillow was built without JPEG 2000")
    return Jpeg2KImagePlugin.Jpeg2KImageFile
