"""Decides by the first `.npy` or TIFF files of a dataset whether its images are stored as tensors."""

from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.images.image_headers import identify
from beam_pipelines.images.npy_header import MAX_HEADER_BYTES
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.images.tensor_values import npy_layout
from beam_pipelines.images.tiff_header import read_tiff_header
from beam_pipelines.images.tiff_pixels import tensor_layout
from beam_pipelines.storage.files import files_at, read_in_any_form, read_start
from beam_pipelines.storage.input_errors import describe_fact

# Endings of the names of files that may contain arrays.
ARRAY_ENDS = (".npy", ".NPY", ".tif", ".TIF", ".tiff", ".TIFF")
_NPY_ENDS = ARRAY_ENDS[:2]
_START_BYTES = 1 << 14  # the size of the first read of a TIFF, whose tags are often at the start


def first_layout(root: str, paths: list[str]) -> RawImage | None:
    """Returns the layout of the first readable `.npy` or TIFF file, or None if it is stored as an ordinary image. Raises
    `UserError` if all files are `.npy` files, and none of them is readable."""
    problems = []
    for name in paths:
        path = f"{root}/{name}"
        try:
            if name.endswith(_NPY_ENDS):
                return npy_layout(read_start(root, name, MAX_HEADER_BYTES))[0]
            return _tiff_layout(root, name)
        except OSError as error:
            problems.append(f"{printable(path)}: {describe_fact(error, path)}")
        except InvalidInput as error:
            problems.append(f"{printable(path)}: {error}")
    if not all(name.endswith(_NPY_ENDS) for name in paths):
        return None  # unreadable TIFFs become dead letters
    raise UserError(
        f"None of the first .npy files is a readable image: {problems[0]}. Correct them, or exclude them with --ignore."
    )


def _tiff_layout(root: str, name: str) -> RawImage | None:
    """Returns the layout of a TIFF that is stored as a tensor, or None for all other files."""
    start = read_start(root, name, _START_BYTES)
    if identify(start) != "tiff":
        return None

    def read(offset: int, num_bytes: int) -> bytes:
        if offset + num_bytes <= len(start):
            return start[offset : offset + num_bytes]
        return read_in_any_form(lambda path: files_at(path).read_range(path, offset, num_bytes), root, name)

    header = read_tiff_header(read)
    return tensor_layout(header) if header.is_tensor else None
