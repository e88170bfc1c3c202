"""Bytes of an entry: a fixed header and an Arrow record batch. Nothing is ever pickled.

Every backend stores what `pack_header` makes and the body as it came. Both ends of a stream know its schema, so a
batch travels without it, and decoding copies nothing: the columns are views of the log's own bytes.
"""

import struct

import pyarrow as pa

from sharedlog.errors import InvalidEntry, UnknownFormat
from sharedlog.log import Entry, Header, Kind

HEADER_VERSION = 1
# version, kind, flags, instance, sequence, epoch, rows, transaction, watermark, time_us, producer
HEADER = struct.Struct("<BBHIQIIQqq32s")
HEADER_BYTES = HEADER.size
MAX_PRODUCER_BYTES = 32
MAX_TAG_BYTES = 255
MAX_TAGS_BYTES = 32 * 1024  # all tags of one entry, each with its length byte
MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_COUNTER_KEY_BYTES = 255

_FLAG_END = 1
_KINDS: dict[int, Kind] = {int(kind): kind for kind in Kind}


def encode_batch(batch: pa.RecordBatch) -> pa.Buffer:
    """An IPC record-batch message without its schema. Dictionary columns cannot travel without one: decode them."""
    for field in batch.schema:
        if pa.types.is_dictionary(field.type):
            raise InvalidEntry(f"column {field.name!r} is dictionary-encoded; cast it to {field.type.value_type} first")
    return batch.serialize()


def decode_batch(body: pa.Buffer | bytes, schema: pa.Schema) -> pa.RecordBatch:
    """The batch that `encode_batch` wrote, as views of `body`; `schema` must be the one it was written with."""
    try:
        return pa.ipc.read_record_batch(body, schema)
    except (pa.ArrowException, OSError) as error:
        raise InvalidEntry(
            f"a body of {len(body)} bytes is no record batch of the schema ({', '.join(schema.names)}): {error};"
            " decode it with the schema of the stream it was read from"
        ) from error


def pack_header(header: Header) -> bytes:
    """Raises `InvalidEntry` when a field does not fit; so an entry that one backend takes fits every backend."""
    producer = header.producer.encode()
    if len(producer) > MAX_PRODUCER_BYTES or b"\0" in producer:
        raise InvalidEntry(
            f"producer {header.producer!r} takes {len(producer)} bytes; a header holds {MAX_PRODUCER_BYTES}"
            " without NULs, so give the task a shorter name"
        )
    if header.kind not in _KINDS:
        raise InvalidEntry(f"entry of {header.producer!r} has kind {header.kind!r}; use a member of Kind")
    try:
        return HEADER.pack(
            HEADER_VERSION,
            header.kind,
            _FLAG_END if header.end else 0,
            header.instance,
            header.sequence,
            header.epoch,
            header.rows,
            header.transaction,
            header.watermark,
            header.time_us,
            producer,
        )
    except struct.error as error:
        raise InvalidEntry(f"a number of {header} is out of range: {error}") from error


def unpack_header(data: bytes | memoryview | pa.Buffer, offset: int = 0) -> Header:
    """Raises `UnknownFormat` for a header of another version or with a kind that this code does not know."""
    version, kind, flags, instance, sequence, epoch, rows, transaction, watermark, time_us, producer = (
        HEADER.unpack_from(data, offset)
    )
    if version != HEADER_VERSION or kind not in _KINDS:
        raise UnknownFormat(
            f"an entry has header version {version} and kind {kind}; this code reads version {HEADER_VERSION} with"
            f" kinds {sorted(_KINDS)}: read it with the release that wrote it, or start with a fresh log directory"
        )
    return Header(
        _KINDS[kind],
        producer.rstrip(b"\0").decode(),
        instance,
        sequence,
        epoch,
        transaction,
        watermark,
        rows,
        time_us,
        bool(flags & _FLAG_END),
    )


def encode_tag(tag: str) -> bytes:
    """A tag's UTF-8 bytes; raises `InvalidEntry` for a tag that no log takes."""
    encoded = tag.encode()
    if not encoded:
        raise InvalidEntry("a tag is empty; every entry is found by non-empty tags such as 'd/bids/0'")
    if len(encoded) > MAX_TAG_BYTES:
        raise InvalidEntry(f"tag {tag[:40]!r}… takes {len(encoded)} bytes, more than {MAX_TAG_BYTES}; shorten it")
    return encoded


def encode_counter_key(key: str) -> bytes:
    """A metadata counter's key; raises `InvalidEntry` for an empty or overlong one."""
    encoded = key.encode()
    if not 1 <= len(encoded) <= MAX_COUNTER_KEY_BYTES:
        raise InvalidEntry(
            f"counter key {key[:40]!r} takes {len(encoded)} bytes; use 1 to {MAX_COUNTER_KEY_BYTES} bytes"
        )
    return encoded


def check_entry(entry: Entry) -> None:
    """Raises `InvalidEntry` for what no log may take, except for its tags' and its header's own rules."""
    tags: object = entry.tags
    if not isinstance(tags, tuple):
        raise InvalidEntry(f"tags must be a tuple of strings and came as {tags!r}")
    if not entry.tags:
        raise InvalidEntry(f"entry of {entry.header.producer!r} has no tag, so nobody could ever read it; give it one")
    if len(entry.body) > MAX_BODY_BYTES:
        raise InvalidEntry(
            f"entry of {entry.header.producer!r} for {entry.tags[0]!r} has a body of {len(entry.body)} bytes,"
            f" more than {MAX_BODY_BYTES}; split the batch"
        )


def encode_schema(schema: pa.Schema) -> pa.Buffer:
    """A stream's schema on its own, for whoever reads a log without knowing the query."""
    return schema.serialize()


def decode_schema(encoded: pa.Buffer | bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(encoded))
