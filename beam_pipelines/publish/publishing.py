"""Publishes a dataset: writes the metadata files, and renames the complete directory to the output path.

All functions can be called again after success, because a Beam runner may retry the publication.
"""

import dataclasses
import os
import pathlib
import shutil
from typing import Iterable, Iterator, Mapping, Sequence

from beam_pipelines.config.run_paths import PROGRESS, REPLACED, RunPaths
from beam_pipelines.errors import RunError, StorageError, UserError, printable
from beam_pipelines.log import print_message
from beam_pipelines.publish.resumable_run import is_complete, is_published
from beam_pipelines.report.write_report import write_report
from beam_pipelines.storage.files import files_at, is_remote, open_file, write_chunks, write_file
from beam_pipelines.storage.lease import check_lease
from beam_pipelines.storage.local_files import remove_temporary_files
from beam_pipelines.storage.working_directory import MARKER, MARKER_TEXT, remove_directory
from tf_input.dataset_format import MANIFEST, REPORT, RUN, FileSum, Manifest, sum_of


def check_files(run: RunPaths, files: Sequence[tuple[str, int]]) -> None:
    """Checks that the files of a manifest exist and have the recorded sizes.

    Args:
        run: The run.
        files: The (path within the dataset, size in bytes) of each file.

    Raises:
        RunError: A file is missing or has another size.
    """
    sizes = dict(files_at(run.working_directory).list(run.working_directory))
    for name, num_bytes in files:
        if sizes.get(name) != num_bytes:
            problem = f"now has {sizes[name]} bytes" if name in sizes else "is now missing"
            raise RunError(f"{name} was written with {num_bytes} bytes, but {problem}. Run the same command again.")


def _files_of(manifest: Manifest) -> list[tuple[str, int]]:
    shards = (shard for shards in manifest.splits.values() for shard in shards)
    return [(name, num_bytes) for shard in shards for name, num_bytes, _ in shard.files()]


def publish_files(
    run: RunPaths, manifest: Manifest, files: Mapping[str, str], lines: Mapping[str, Iterable[bytes]], *, has_report: bool = False
) -> None:
    """Writes the metadata and the optional HTML report of a dataset, and publishes the dataset.

    Args:
        run: The run.
        manifest: The manifest of the dataset, without the checksums of the metadata files.
        files: A mapping from the name of a metadata file to its contents.
        lines: A mapping from the name of a metadata file that is written line by line to its lines.
        has_report: Whether to write the HTML report.
    """
    if is_published(run):
        publish(run, b"")
        return
    check_files(run, _files_of(manifest))
    sums: dict[str, FileSum] = {}
    for name, chunks in {**{name: [text.encode()] for name, text in files.items()}, **lines}.items():
        write_chunks(f"{run.working_directory}/{name}", _summed(name, chunks, sums))
    if has_report:
        _write_report(run.working_directory, manifest, sums)
    sums.pop(RUN, None)  # This file differs between identical runs, so the manifest must not depend on it.
    publish(run, dataclasses.replace(manifest, files=sums).to_json().encode())


def _summed(name: str, chunks: Iterable[bytes], sums: dict[str, FileSum]) -> Iterator[bytes]:
    """Yields chunks of a file unchanged, then adds the file's checksum to `sums`."""
    file_sum = FileSum()
    for chunk in chunks:
        file_sum = file_sum.extended(chunk)
        yield chunk
    sums[name] = file_sum


def _write_report(directory: str, manifest: Manifest, sums: dict[str, FileSum]) -> None:
    """Writes the HTML report of a dataset and adds its checksum to `sums`.

    If an unexpected exception occurs, a warning is logged, and the dataset has no report.
    """
    try:
        sums[REPORT] = FileSum().extended(write_report(directory, manifest))
    except (UserError, RunError):
        raise
    except Exception as error:
        print_message(f"{REPORT} could not be written ({type(error).__name__}: {printable(str(error))[:200]})", "warning")


def publish(run: RunPaths, manifest: bytes) -> None:
    """Writes the last file of a dataset, usually the manifest, and moves the dataset to its output path.

    Raises:
        RunError: Another run has taken over, or another program has created files at the output path.
        StorageError: A file operation failed.
    """
    if not is_published(run):
        check_lease(run.scratch_directory, run.holder)
    try:
        _publish_in_store(run, manifest) if is_remote(run.output) else _publish_on_disk(run, manifest)
    except OSError as error:
        raise StorageError(f"{printable(run.output)} could not be moved to its final path: {error.strerror or error}") from error


def finish_publishing(run: RunPaths) -> bool:
    """Publishes a dataset that an earlier attempt completed but did not publish. Returns False if there is none.

    Raises:
        RunError: A shard or a metadata file has changed since it was written.
    """
    if is_published(run):
        publish(run, b"")
        return True
    if not is_complete(run):
        return False
    data = files_at(run.working_directory).read(f"{run.working_directory}/{MANIFEST}")
    manifest = Manifest.from_json(data.decode())
    check_files(run, _files_of(manifest))
    _check_metadata(run.working_directory, manifest)
    check_lease(run.scratch_directory, run.holder)
    if run.is_output_new:
        check_still_new(pathlib.Path(run.output))
    move_to_output(run)
    return True


def _check_metadata(directory: str, manifest: Manifest) -> None:
    """Raises `RunError` if a metadata file is missing or has changed since the manifest was written."""
    for name in manifest.files:
        try:
            with open_file(f"{directory}/{name}") as file:
                manifest.check_sum(name, sum_of(file))
        except FileNotFoundError:
            raise RunError(f"{name} was written, but is now missing. Run the same command again.") from None
        except ValueError as error:
            raise RunError(f"{error}") from None


def _publish_in_store(run: RunPaths, last_file: bytes) -> None:
    """Writes the last file. An output that replaces an old output is then copied from the scratch directory.

    The function can be called again after success.
    """
    store = files_at(run.output)
    if not is_published(run):
        write_file(f"{run.working_directory}/{run.last_file}", last_file)
        if run.working_directory != run.output:
            # If the copy fails, the marker lets a later run remove the rest of the old dataset.
            write_file(f"{run.output}/{MARKER}", MARKER_TEXT)
            store.remove(f"{run.output}/{run.last_file}")
            store.remove_all(run.output, but=(MARKER,))
            store.copy_all(run.working_directory, run.output, last=run.last_file)
        store.remove(f"{run.working_directory}/{MARKER}")
    store.remove(f"{run.output}/{MARKER}")
    remove_directory(run.scratch_directory)


def _publish_on_disk(run: RunPaths, last_file: bytes) -> None:
    """Writes the last file and renames the directory. The function can be called again after success."""
    if is_published(run):
        return
    if run.is_output_new:
        check_still_new(pathlib.Path(run.output))
    remove_temporary_files(run.working_directory)  # A killed attempt can leave temporary files.
    write_file(f"{run.working_directory}/{run.last_file}", last_file)
    move_to_output(run)


def move_to_output(run: RunPaths) -> None:
    """Removes the intermediate files of a complete output and moves it to its final path."""
    for scratch in (run.spool_directory, run.plan_directory, run.done_directory, f"{run.directory}/{PROGRESS}"):
        shutil.rmtree(scratch, ignore_errors=True)
    publish_directory(pathlib.Path(run.working_directory), pathlib.Path(run.output))
    remove_directory(run.scratch_directory)


def check_still_new(output: pathlib.Path) -> None:
    """Raises `RunError` if another program created files at the output path during the run."""
    if os.path.lexists(output) and not (output.is_dir() and not os.listdir(output)):
        raise RunError(
            f"{printable(str(output))} was created by another program during the run, and was not changed. Choose a "
            "new --output."
        )


def publish_directory(directory: pathlib.Path, output: pathlib.Path) -> None:
    """Moves a directory to the output path with a single rename.

    An old dataset is first moved to a path beside the output. It is moved back if the rename fails, and removed
    otherwise. If the process is killed between the two renames, both datasets remain.
    """
    old = output.with_name(f"{output.name}{REPLACED}")
    has_old = output.exists()
    if has_old:
        if os.path.lexists(old):
            raise RunError(
                f"{printable(str(old))} was created by another program during the run, but --overwrite needs this path "
                "for the old dataset. Remove it."
            )
        os.replace(output, old)
    try:
        os.replace(directory, output)
    except BaseException:  # Includes KeyboardInterrupt.
        if has_old and not output.exists():
            os.replace(old, output)
        raise
    if has_old:
        shutil.rmtree(old, ignore_errors=True)
