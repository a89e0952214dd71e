"""Runs SQL queries on the catalog of a dataset with DuckDB."""

from typing import Any, Mapping, NamedTuple

from tf_input.selection.catalog import Catalog
from tf_input.storage.packages import import_package


class Answer(NamedTuple):
    """The column names and the rows of a query result."""

    names: list[str]
    rows: list[tuple[Any, ...]]


def ask(sql: str, catalogs: Mapping[str, Catalog]) -> Answer:
    """Runs a query over the table `catalog`, which has a row for each example and an additional column `split`.

    The query can't access files or the network.

    Args:
        sql: The query, in DuckDB's dialect.
        catalogs: The catalog of each split, by the name of the split.

    Raises:
        ImportError: DuckDB or pyarrow is missing.
        OSError: A catalog can't be read.
        ValueError: The query is invalid, or there is no catalog.
    """
    duckdb = import_package("duckdb", "--sql", "'recordmill[sql]'")
    arrow = import_package("pyarrow", "reading catalogs", "pyarrow")
    parts = []
    for split, catalog in catalogs.items():
        for part in catalog.tables():
            has_split_feature = "split" in part.column_names
            parts.append(part if has_split_feature else part.append_column("split", arrow.array([split] * len(part), arrow.string())))
    table = arrow.concat_tables(parts, promote_options="permissive")
    with duckdb.connect(config={"enable_external_access": "false", "python_enable_replacements": "false"}) as connection:
        connection.register("catalog", table)
        try:
            relation = connection.execute(sql)
            if relation is None:
                raise ValueError(
                    f"--sql={sql!r} is not a query. Pass one such as: select label, count(*) from catalog group by "
                    "label"
                )
            return Answer([column[0] for column in relation.description or ()], relation.fetchall())
        except duckdb.Error as error:
            raise ValueError(
                f"--sql={sql!r} failed: {' '.join(str(error).split())}. The columns of catalog are "
                f"{', '.join(table.column_names)}."
            ) from None
