"""Lists an input with one split and plans its shards without Beam, so that tests can write the shards."""

import pathlib
from typing import Any, Mapping, Sequence

from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.elements.plan import PlannedShard, WrittenShard, recordmill_version
from beam_pipelines.elements.plan_files import read_planned_shard
from beam_pipelines.parallel.worker_processes import share
from beam_pipelines.shards.shard_files import finish_shard
from beam_pipelines.shards.shard_writer import write_part
from beam_pipelines.shards.written_part import ShardPart, WrittenPart
from beam_pipelines.shards.write_context import WriteContext, WriteSpec
from beam_pipelines.shuffle import global_shuffle as shuffle
from beam_pipelines.shuffle.ranks import ShuffleSpec
from listings import make_listing, make_schema
from made_images import write_files
from made_references import list_input, make_run, make_references, plan_without_beam


class PlannedInput:
    """An input directory `in`, and the plan of its shards in the working directory `out.incomplete`.
    Args:
        directory: Directory for the input and the output.
        files: Contents by path.
        images: Listed inputs. None lists the files as class folders.
        num_shards: Number of shards of the split.
        **options: Options of the configuration.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        files: Mapping[str, bytes],
        images: Sequence[InputRecord] | None = None,
        num_shards: int = 1,
        **options: Any,
    ) -> None:
        self.root = write_files(directory / "in", files)
        defaults = {"input": str(self.root), "splits": {"train": 1}, "max_bad_fraction": 1.0}
        self.made = make_run(directory, **{**defaults, **options})
        if images is None:
            batches, _, listing = list_input(self.made)
        else:
            batches = [make_references(images, self.made)]
            labels = sorted({image.label for image in images})
            schema = make_schema(*labels, has_sizes=self.made.options.check != "none")
            listing = make_listing(*labels, schema=schema, root=str(self.root), num_inputs=len(images))
        self.context = WriteContext(self.made.spec(WriteSpec), listing)
        self.shards, collisions, plan = plan_without_beam(batches, {"train": num_shards}, self.made)
        shuffle.finish(b"", self.shards, [collisions], [], plan, listing, self.made.spec(ShuffleSpec), recordmill_version())
        self.out = pathlib.Path(self.made.run.working_directory)

    def keys(self, shard: PlannedShard | None = None) -> list[str]:
        """Returns the example keys of a shard in record order."""
        return [key.decode() for key in read_planned_shard(self.made.run, shard or self.shards[0]).keys]

    def write_parts(self, num_parts: int = 1, shard: PlannedShard | None = None) -> list[WrittenPart]:
        context = share(self.context)
        return [write_part(context, shard or self.shards[0], ShardPart(number, num_parts)) for number in range(num_parts)]

    def write(self, num_parts: int = 1, shard: PlannedShard | None = None) -> WrittenShard:
        return finish_shard(self.context, shard or self.shards[0], self.write_parts(num_parts, shard))

    def files(self) -> dict[str, bytes]:
        """Returns a mapping from file names to contents for all files in the working directory except scratch files."""
        actual = {str(path.relative_to(self.out)): path.read_bytes() for path in sorted(self.out.rglob("*")) if path.is_file()}
        return {name: data for name, data in actual.items() if name.split("/")[0] not in ("plan", "spool", "done", "progress")}
