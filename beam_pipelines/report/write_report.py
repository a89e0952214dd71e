"""Writes the report of a dataset."""

from beam_pipelines.errors import InvalidInput, StorageError, UserError, printable, reading_error
from beam_pipelines.report.contents import read_contents
from beam_pipelines.report.page import render_page
from beam_pipelines.report.sample import read_sample
from beam_pipelines.storage.files import files_at, write_file
from tf_input.dataset_format import REPORT, Manifest
from tf_input.serialized_example import BadExampleError

# A marker at the start of every report, and the number of bytes in which to search for it.
_MARK, _MARK_WITHIN = b'<meta name="generator" content="recordmill">', 512


def write_report(directory: str, manifest: Manifest) -> bytes:
    """Writes `report.html` of a dataset and returns its bytes.

    All other files of the dataset except the manifest must exist.

    Raises:
        UserError: A file of the dataset is corrupt.
        StorageError: A file cannot be read, has changed, or cannot be written.
    """
    try:
        page = make_report(directory, manifest)
    except StorageError:
        raise
    except BadExampleError as error:
        raise StorageError(f"{REPORT} could not be written, because an example is corrupt: {error}") from error
    except OSError as error:
        raise StorageError(
            f"{REPORT} could not be written, because a file of the dataset could not be read: {error.strerror or error}"
        ) from error
    write_file(f"{directory}/{REPORT}", page)
    return page


def make_report(directory: str, manifest: Manifest) -> bytes:
    """Returns the bytes of `report.html`.

    Raises:
        UserError: A file of the dataset is corrupt.
        OSError: A file of the dataset cannot be read.
    """
    return render_page(read_contents(directory, manifest), read_sample(directory, manifest))


def run_report(directory: str, manifest: Manifest, output: str | None = None) -> str:
    """Writes the report of a published dataset and returns its path.

    Args:
        directory: The path or URL of the dataset.
        manifest: The manifest of the dataset.
        output: The path of the report. If None, the report is written to the directory of the dataset.

    Raises:
        UserError: The dataset is corrupt, the path exists and is not a report, or the report would not match the
            manifest.
        StorageError: The dataset cannot be read, or the report cannot be written.
    """
    path = f"{directory}/{REPORT}" if output is None else output
    if output is not None:
        _check_free(output)
    try:
        page = make_report(directory, manifest)
    except OSError as error:
        raise reading_error(error, ". Run `recordmill verify` for details.") from None
    # A corrupt dataset can contain any values.
    except (ArithmeticError, AttributeError, IndexError, KeyError, InvalidInput, TypeError, ValueError) as error:
        raise UserError(
            f"{printable(directory)} is corrupt: {error!r:.200}. Run `recordmill verify` for details."
        ) from None
    if output is None:
        try:
            manifest.check_file(REPORT, page)
        except ValueError:
            problem = (
                f"the new report differs from {printable(path)}, because of another version of Recordmill or a changed "
                "file"
            )
            raise UserError(f"{problem}. Write it to another path with --page=FILE.") from None
    write_file(path, page)
    return path


def _check_free(path: str) -> None:
    """Raises `UserError` if a file exists that is not a report, and `StorageError` if the file cannot be read."""
    try:
        start = files_at(path).read_range(path, 0, _MARK_WITHIN) if files_at(path).exists(path) else b""
    except OSError as error:
        raise StorageError(f"{printable(path)} could not be read: {error.strerror or error}", path) from error
    if start and _MARK not in start:
        raise UserError(f"--page={printable(path)} exists, and is not a report of `recordmill report`. Choose another path.", path)
