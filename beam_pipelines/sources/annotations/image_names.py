"""Finds images by the names in annotation files."""

import posixpath
from typing import Sequence

from beam_pipelines.errors import InvalidInput, printable
from beam_pipelines.sources.files.file_listing import ListedFile
from beam_pipelines.sources.files.keys import nfc

_MAX_SHOWN = 3


class ImageNames:
    """An index of the images below a folder by file name. Each image takes about 300 bytes of memory."""

    def __init__(self) -> None:
        self._by_name: dict[str, list[ListedFile]] = {}

    def add(self, image: ListedFile) -> None:
        """Adds an image to the index."""
        self._by_name.setdefault(nfc(posixpath.basename(image.path)), []).append(image)

    def find(self, names: Sequence[str]) -> ListedFile:
        """Returns the only image whose path ends with one of the names.

        Args:
            names: The possible names, with or without folders. The first name that matches an image is used.

        Raises:
            InvalidInput: No image or several images match, or a name contains `..`.
        """
        for name in names:
            path = nfc(name.replace("\\", "/")).removeprefix("./").lstrip("/")
            if ".." in path.split("/"):
                raise InvalidInput("outside", f"{printable(name[:200])!r} is not a path below the folder of images")
            images = self._by_name.get(posixpath.basename(path), [])
            fitting = [image for image in images if f"/{nfc(image.path)}".endswith(f"/{path}")]
            exact = [image for image in fitting if nfc(image.path) == path] or fitting
            if len(exact) > 1:
                shown = ", ".join(printable(image.path) for image in sorted(exact)[:_MAX_SHOWN])
                raise InvalidInput("ambiguous", f"several images are called {printable(name[:200])!r}: {shown}")
            if exact:
                return exact[0]
        raise InvalidInput("missing", f"no image is called {printable(names[-1][:200])!r}")
