"""Restores the image hashes and the near-duplicate groups of a dataset that was made with `--duplicates`."""

import contextlib
import dataclasses
import json
from typing import Mapping

from beam_pipelines.elements.image_hashes import pack_hashes
from beam_pipelines.elements.references import References
from beam_pipelines.elements.binary_column import BinaryColumn
from beam_pipelines.errors import RunError, printable
from beam_pipelines.shards.hash_some import hash_references
from beam_pipelines.shards.write_context import WriteContext
from beam_pipelines.storage.files import open_file
from beam_pipelines.storage.spool import SpoolReader
from tf_input.dataset_format import NEAR_DUPLICATES


@dataclasses.dataclass(frozen=True)
class NearDuplicateGroups:
    """The groups into which near-duplicates were merged.

    Attributes:
        of_keys: A mapping from the key of an image that has near-duplicates to its group.
        of_groups: A mapping from each merged group to its new name.
    """

    of_keys: Mapping[bytes, bytes]
    of_groups: Mapping[bytes, bytes]

    @classmethod
    def read(cls, directory: str) -> "NearDuplicateGroups":
        """Reads the groups of a dataset."""
        of_keys, of_groups = {}, {}
        try:
            with open_file(f"{directory}/{NEAR_DUPLICATES}") as file:
                for line in file:
                    fields = json.loads(line)
                    of_keys[fields["key"].encode()] = fields["group"].encode()
                    if fields["original_group"]:
                        of_groups[fields["original_group"].encode()] = fields["group"].encode()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            path = f"{printable(directory)}/{NEAR_DUPLICATES}"
            raise RunError(f"{path} is missing or corrupt: {error}. Prepare the dataset again.") from None
        return cls(of_keys, of_groups)

    def regroup(self, references: References) -> References:
        """Returns references with the near-duplicate groups of the original run."""
        groups = [self.of_keys.get(key) or self.of_groups.get(group, group) for key, group in zip(references.keys, references.groups)]
        return dataclasses.replace(references, groups=BinaryColumn.of(groups))


def hash_again(context: WriteContext, references: References) -> tuple[References, list[str]]:
    """Adds image hashes to the references of a shard. Also returns a message for each image that is now invalid."""
    with contextlib.closing(SpoolReader(context.config.spool_directory)) as spool:
        rows, rejected, dead_letters = hash_references(context, references, spool)
    if rejected:
        return references, [f"{printable(letter.path)}: {letter.message} ({letter.stage})" for letter in dead_letters]
    return dataclasses.replace(references, hashes=pack_hashes(rows)), []
