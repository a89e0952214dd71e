"""Defines the base class of sources whose files contain rows."""

from typing import Any, Callable, Collection, Iterable, Iterator, Mapping, TypeVar

from beam_pipelines.config.prepare_config import PrepareConfig
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import NO_IMAGE, InputRecord
from beam_pipelines.errors import InvalidInput, printable
from beam_pipelines.sources.files.file_listing import matches
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.sources.files.searched_root import SearchedRoot
from beam_pipelines.sources.rows.row_mapper import RowMapper
from beam_pipelines.sources.rows.table_files import TableFile, find_table_files, open_root
from beam_pipelines.sources.source import Source

Input = TypeVar("Input")


class RowFiles(Source):
    """Lists the inputs in the rows of one or several files. Each file is a part.

    Args:
        config: The options of the source.
        formats: Extension -> format, as in `find_table_files`.
        metadata: The names of preferred files, as in `find_table_files`.
    """

    def __init__(self, config: PrepareConfig, formats: Mapping[str, str], metadata: tuple[str, ...] = ()) -> None:
        super().__init__(config)
        folder, files = find_table_files(config, formats, metadata)
        source = config.source
        self.root = Root(source.image_root or folder).path
        self._searched_root = None
        if source.search_images or source.image_folders:
            self._searched_root = SearchedRoot(self.root, config.follow_links, source.image_folders, config.ignore, source.search_images)
        self._config = config
        self._files = {file.name: file for file in files}
        self._mapper: RowMapper

    def parts(self) -> list[str]:
        return [*self._files]

    def label_names(self) -> Mapping[str, Collection[str]]:
        return self._mapper.label_names

    def _root_of(self, file: TableFile) -> Root:
        if self._searched_root is not None:
            return self._searched_root
        return open_root(self.root, "" if self._config.source.image_root else file.folder, self._config.follow_links)

    def _read_rows(
        self, file: TableFile, rows: Iterable[tuple[int, Any]], read: Callable[[int, Any], Input]
    ) -> Iterator[Input | DeadLetter]:
        """Yields the inputs and dead letters for the rows of one file.

        Args:
            file: The file with the rows.
            rows: Row numbers and rows. An `InvalidInput` replaces a row that cannot be read.
            read: Converts a row number and a row to an input. Raises `InvalidInput` for an invalid row. For an image that
                `_is_ignored`, other cells need not be read.
        """
        for number, row in rows:
            try:
                if isinstance(row, InvalidInput):
                    raise row
                image = read(number, row)
            except InvalidInput as error:
                yield DeadLetter.of(f"{printable(file.name)}:{number}", error)
                continue
            if isinstance(image, InputRecord) and self._is_ignored(image):
                self.num_ignored += 1
            else:
                yield image

    def _is_ignored(self, image: InputRecord) -> bool:
        """Returns whether the path of an image matches `--ignore`."""
        ignore = self._config.ignore
        return bool(ignore) and image.offset != NO_IMAGE and matches(image.path, ignore)
