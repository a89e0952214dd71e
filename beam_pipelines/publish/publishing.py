"""The last step of a run: what is whole takes its final name, and from then on is a data set (promise 4).

A runner that did not hear of its end tries the step again: what is done already stays done.
"""

import os
import pathlib
import shutil
from typing import Iterable, Mapping, Sequence

from beam_pipelines.config.output_paths import PROGRESS, REPLACED, OutputPaths
from beam_pipelines.errors import RunError, StorageError, UserError, printable
from beam_pipelines.log import say
from beam_pipelines.publish.left_run import is_in_place, is_whole
from beam_pipelines.publish.output_directory import remove_marked
from beam_pipelines.report.write_report import write_report
from beam_pipelines.storage.files import files_at, is_remote, write_file, write_pieces
from beam_pipelines.storage.lease import check_lease
from beam_pipelines.storage.marked_directory import MARKER, MARKER_TEXT, remove_directory, remove_temporary_files
from tf_input.dataset_format import MANIFEST, REPORT, Manifest


def check_files(config: OutputPaths, files: Sequence[tuple[str, int]]) -> None:
    """Checks files before a manifest names them.

    Args:
        config: The paths of the run.
        files: (path within the data set, size in bytes) of each file.

    Raises:
        RunError: A file is not there as it was written.
    """
    directory = config.working_directory
    if is_remote(directory):
        sizes = dict(files_at(directory).list(directory))
    else:
        paths = {name: pathlib.Path(directory, name) for name, _ in files}
        sizes = {name: path.stat().st_size for name, path in paths.items() if path.is_file()}
    for name, num_bytes in files:
        if sizes.get(name) != num_bytes:
            found = f"has {sizes[name]} bytes" if name in sizes else "is gone"
            raise RunError(f"{name} was written with {num_bytes} bytes, and {found}")


def _files_of(manifest: Manifest) -> list[tuple[str, int]]:
    shards = (shard for shards in manifest.splits.values() for shard in shards)
    return [(name, num_bytes) for shard in shards for name, num_bytes, _ in shard.files()]


def publish_files(
    config: OutputPaths, manifest: Manifest, files: Mapping[str, str], lines: Mapping[str, Iterable[bytes]], *, has_report: bool = False
) -> None:
    """Writes the metadata of a data set whose shards are there, and its page if it can be made, and publishes it.

    Args:
        config: The paths of the run.
        manifest: The manifest of the data set.
        files: Name -> contents of the metadata files.
        lines: Name -> lines of the metadata files that are written line by line.
        has_report: Whether the data set gets its page.
    """
    packed = manifest.to_json().encode()
    if not is_in_place(config):
        check_files(config, _files_of(manifest))
        for name, text in files.items():
            write_file(f"{config.working_directory}/{name}", text.encode())
        for name, of_file in lines.items():
            write_pieces(f"{config.working_directory}/{name}", of_file)
        if has_report:
            _write_report(config.working_directory, manifest)
    publish(config, packed)


def _write_report(directory: str, manifest: Manifest) -> None:
    """Writes the page of a data set, where that is possible.

    It raises where what was just written is not so, or a disk or a store fails, as with other files. What else goes wrong keeps nobody
    from training.
    """
    try:
        write_report(directory, manifest)
    except (UserError, RunError):
        raise
    except Exception as error:
        say(f"{REPORT} could not be made ({type(error).__name__}: {printable(str(error))[:200]})", "warning")


def publish(config: OutputPaths, manifest: bytes) -> None:
    """Writes the manifest, or whatever comes last, after all that it names, and brings the data set to its final name.

    Raises:
        RunError: Another run has taken over, or something came to that name meanwhile.
        StorageError: A disk or a store refuses the data set.
    """
    if not is_in_place(config):
        check_lease(config.scratch_directory, config.holder)
    try:
        _publish_objects(config, manifest) if is_remote(config.output) else _publish_folder(config, manifest)
    except OSError as error:
        raise StorageError(f"{printable(config.output)} could not be put in its place: {error.strerror or error}") from error


def _publish_objects(config: OutputPaths, manifest: bytes) -> None:
    """Publishes in an object store, which cannot rename.

    A new data set is written in place; one that replaces another is copied there, and until it is there whole, all of it is where it was.
    """
    store = files_at(config.output)
    if not is_in_place(config):
        write_file(f"{config.working_directory}/{config.last_file}", manifest)
        if config.working_directory != config.output:
            write_file(f"{config.output}/{MARKER}", MARKER_TEXT)  # so that what is left of the old one is known to be nobody's
            store.remove(f"{config.output}/{config.last_file}")
            store.remove_all(config.output, but=(MARKER,))
            store.copy_all(config.working_directory, config.output, last=config.last_file)
        store.remove(f"{config.working_directory}/{MARKER}")
    _clear_objects(config)


def _clear_objects(config: OutputPaths) -> None:
    store = files_at(config.output)
    store.remove(f"{config.output}/{MARKER}")
    remove_marked(store, config.scratch_directory)


def _publish_folder(config: OutputPaths, manifest: bytes) -> None:
    if is_in_place(config):
        return
    if config.is_output_new:
        _check_still_new(pathlib.Path(config.output))
    remove_temporary_files(config.working_directory)  # of an attempt that was killed
    write_file(f"{config.working_directory}/{config.last_file}", manifest)
    _finish_folder(config)


def finish_publishing(config: OutputPaths) -> bool:
    """Brings to its place what an earlier attempt has written whole; False where none came so far.

    Raises:
        RunError: A shard is not as it was written.
    """
    if is_in_place(config):
        if is_remote(config.output):  # on a disk it goes with the run's lock
            _clear_objects(config)
        return True
    if not is_whole(config):
        return False
    data = files_at(config.working_directory).read(f"{config.working_directory}/{MANIFEST}")
    manifest = Manifest.from_json(data.decode())
    check_files(config, _files_of(manifest))
    check_lease(config.scratch_directory, config.holder)
    if config.is_output_new:
        _check_still_new(pathlib.Path(config.output))
    _finish_folder(config)
    return True


def _finish_folder(config: OutputPaths) -> None:
    """Puts a data set into its place on a disk.

    From the manifest on it is whole: what it was made from goes, then the name that says that it is not whole.
    """
    for scratch in (config.spool_directory, config.plan_directory, config.done_directory, f"{config.run_directory}/{PROGRESS}"):
        shutil.rmtree(scratch, ignore_errors=True)
    move_into_place(pathlib.Path(config.working_directory), pathlib.Path(config.output))
    remove_directory(config.scratch_directory)


def _check_still_new(output: pathlib.Path) -> None:
    """Checks that nothing came to the output meanwhile: nobody has said that it may be replaced."""
    if os.path.lexists(output) and not (output.is_dir() and not os.listdir(output)):
        raise RunError(f"{printable(str(output))} came into being while the run was at work; it was left as it is")


def move_into_place(directory: pathlib.Path, output: pathlib.Path) -> None:
    """Moves a directory to its place by one rename.

    With `--overwrite` the old data set steps aside first, steps back if that fails, and is removed last. Who is killed between the two
    leaves both; nobody else removes either.
    """
    old = output.with_name(f"{output.name}{REPLACED}")
    steps_aside = output.exists()
    if steps_aside:
        if os.path.lexists(old):
            raise RunError(f"{printable(str(old))} came into being while the run was at work; the old data set steps aside there")
        os.replace(output, old)
    try:
        os.replace(directory, output)
    except BaseException:  # Ctrl-C too
        if steps_aside and not output.exists():
            os.replace(old, output)
        raise
    if steps_aside:
        shutil.rmtree(old, ignore_errors=True)
