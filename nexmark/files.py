"""Files of events: which ones a directory holds, and reading them with every row checked.

A directory has the kinds `persons`, `auctions` and `bids`, each as one file (`bids.jsonl`) or as several that are read
in the order of their names (`bids-000.parquet`, `bids-001.parquet`). Columns are those of `nexmark.events`; others are
ignored, and `number` may be left out. A first fast pass reads whole files; only where it fails, a slow second one
looks for the row to blame.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet

from nexmark.errors import ReplayError
from nexmark.events import AUCTION, BID, PERSON

KINDS: Mapping[str, pa.Schema] = MappingProxyType({"persons": PERSON, "auctions": AUCTION, "bids": BID})
SUFFIXES = (".parquet", ".jsonl")
OPTIONAL = "number"
NOT_NEGATIVE = ("number", "ts", "expires")


def find(directory: Path) -> dict[str, list[Path]]:
    """Files of each kind, in reading order."""
    if not directory.is_dir():
        raise ReplayError(f"replay: {directory} is not a directory")
    found: dict[str, list[Path]] = {}
    for kind in KINDS:
        found[kind] = sorted(
            path
            for path in directory.iterdir()
            if path.suffix in SUFFIXES and (path.stem == kind or path.stem.startswith(f"{kind}-"))
        )
        if not found[kind]:
            raise ReplayError(f"replay: {directory} has no {kind}.parquet or {kind}.jsonl; an empty file will do")
    return found


def read(path: Path, kind: str) -> pa.Table:
    """All rows of a file in the kind's schema; without the column `number` if the file has none."""
    table = _read_parquet(path, kind) if path.suffix == ".parquet" else _read_jsonl(path, kind)
    for name in NOT_NEGATIVE:
        if name in table.column_names:
            row = pc.index(pc.less(table[name], 0), True).as_py()
            if row >= 0:
                _blame(path, row, name, f"must not be negative, got {table[name][row].as_py()}")
    return table


def require_unique(name: str, parts: list[tuple[Path, pa.Table]]) -> None:
    """A column must be in all of these files without a repeated value, or (only `number`) in none of them."""
    having = [(path, table) for path, table in parts if name in table.column_names]
    if len(having) not in (0, len(parts)):
        without = next(path for path, table in parts if name not in table.column_names)
        _blame(without, 0, name, f"is missing, and {having[0][0].name} has it; give it in all files or in none")
    if not having:
        return
    values = np.concatenate([table[name].to_numpy() for _, table in having])
    order = np.argsort(values, kind="stable")
    repeated = order[1:][values[order[1:]] == values[order[:-1]]]
    if len(repeated):
        row = int(repeated.min())
        value = int(values[row])
        for path, table in having:
            if row < table.num_rows:
                _blame(path, row, name, f"must be unique, and {value} occurred before")
            row -= table.num_rows


def _blame(path: Path, row: int, name: str, what: str) -> NoReturn:
    raise ReplayError(f"replay: {path} row {row + 1} field {name!r}: {what}")


def _read_parquet(path: Path, kind: str) -> pa.Table:
    try:
        table = pyarrow.parquet.read_table(path, partitioning=None)
    except (pa.ArrowException, OSError) as error:
        raise ReplayError(f"replay: {path} cannot be read as Parquet: {error}") from error
    columns, fields = [], []
    for field in KINDS[kind]:
        if field.name not in table.column_names:
            if field.name == OPTIONAL:
                continue
            _blame(path, 0, field.name, "is missing, here and in every row")
        columns.append(_converted(path, table[field.name], field))
        fields.append(field)
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _converted(path: Path, column: Any, field: pa.Field) -> Any:
    if column.null_count:
        _blame(path, pc.index(column.is_null(), True).as_py(), field.name, "is missing")
    given = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    try:
        if pa.types.is_int64(field.type):
            if pa.types.is_timestamp(given) and field.name in ("ts", "expires"):
                return column.cast(pa.timestamp("us", tz=given.tz)).cast(pa.int64())
            if pa.types.is_integer(given):
                return column.cast(pa.int64())
        elif pa.types.is_string(given) or pa.types.is_large_string(given) or pa.types.is_string_view(given):
            return column.cast(pa.string())
    except pa.ArrowInvalid as error:
        _blame(path, 0, field.name, f"or a later row does not fit {field.type}: {error}")
    _blame(path, 0, field.name, f"needs {field.type}, and the column has {column.type}")


def _read_jsonl(path: Path, kind: str) -> pa.Table:
    schema = KINDS[kind]
    if path.stat().st_size == 0:
        return schema.empty_table()
    parse = pyarrow.json.ParseOptions(explicit_schema=_nullable(schema), unexpected_field_behavior="ignore")
    try:
        table = pyarrow.json.read_json(path, pyarrow.json.ReadOptions(block_size=1 << 24), parse)
    except pa.ArrowException as error:
        _diagnose(path, schema)
        raise ReplayError(f"replay: {path} cannot be read as JSON Lines: {error}") from error
    if table[OPTIONAL].null_count == table.num_rows:
        table = table.drop_columns([OPTIONAL])
    if any(column.null_count for column in table.columns):
        _diagnose(path, schema)
        raise ReplayError(f"replay: {path} has rows without all fields")
    return table.cast(pa.schema([schema.field(name) for name in table.column_names]))


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


def _diagnose(path: Path, schema: pa.Schema) -> None:
    """Find the first bad row; return only if there is none."""
    numbered: bool | None = None
    with path.open("rb") as lines:
        for row, line in enumerate(line for line in lines if line.strip()):
            try:
                record = json.loads(line)
            except ValueError as error:
                raise ReplayError(f"replay: {path} row {row + 1} is not JSON: {error}") from error
            if not isinstance(record, dict):
                raise ReplayError(f"replay: {path} row {row + 1} must be a JSON object, got {line[:60]!r}")
            has_number = record.get(OPTIONAL) is not None
            numbered = has_number if numbered is None else numbered
            for field in schema:
                if field.name == OPTIONAL and not numbered:
                    if has_number:
                        _blame(path, row, OPTIONAL, "is given here but not in the rows before; give all or none")
                    continue
                _check_value(path, row, field, record.get(field.name))


def _check_value(path: Path, row: int, field: pa.Field, value: object) -> None:
    if value is None:
        _blame(path, row, field.name, "is missing")
    if pa.types.is_int64(field.type):
        if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
            _blame(path, row, field.name, f"needs a whole number of 64 bits, got {json.dumps(value)[:60]}")
    elif not isinstance(value, str):
        _blame(path, row, field.name, f"needs a string, got {json.dumps(value)[:60]}")
