"""An entry as it lies in a segment file.

    crc32c u32 │ length u32 │ lsn u64 │ body bytes u32 │ tags bytes u16 │ body offset u16 │ header │ tags │ 0… │ body

The checksum covers everything after the LSN. The LSN is known under the log's write lock only: the frame is written
before with the one that the writer expects, which is right unless somebody else appended meanwhile, and corrected then.
It is protected by being compared with the index. Frames and bodies begin at multiples of 64 bytes, so that
Arrow reads a body in place.
"""

import functools
import struct
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
from fastcrc.crc32 import iscsi as crc32c

from sharedlog.codec import (
    HEADER_BYTES,
    MAX_BODY_BYTES,
    MAX_TAGS_BYTES,
    check_entry,
    encode_tag,
    pack_header,
    unpack_header,
)
from sharedlog.errors import Corrupted, InvalidEntry
from sharedlog.log import Entry, Record

PREFIX = struct.Struct("<IIQIHH")
LSN = struct.Struct("<Q")
LSN_OFFSET = 8
ALIGNMENT = 64
_CHECKED_FROM = 16
_UNCHECKED_PREFIX = struct.Struct("<IIQ")
_CHECKED_PREFIX = struct.Struct("<IHH")
_TAGS_OFFSET = PREFIX.size + HEADER_BYTES
_PADDING = bytes(ALIGNMENT)


class Location(NamedTuple):
    """Where an entry lies; the value of an index row, so that a read needs no further look-up."""

    segment: int
    offset: int
    length: int
    body_offset: int
    kind: int

    @property
    def cost_bytes(self) -> int:
        """What the entry counts for in a read's `max_bytes`: its header and its body."""
        return HEADER_BYTES + self.length - self.body_offset


class Frame(NamedTuple):
    """An entry made ready outside of the write lock: the pieces to write, and what its index rows need."""

    pieces: tuple[bytes | pa.Buffer, ...]
    length: int
    padded_bytes: int
    body_offset: int
    kind: int
    tags: tuple[bytes, ...]


def align(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def build(entry: Entry, lsn: int = 0) -> Frame:
    """Validate and lay out an entry, as if its LSN were known already. Raises `InvalidEntry`."""
    check_entry(entry)
    tags, tags_bytes, packed_tags, body_offset = _lay_out(entry.tags)
    body = entry.body
    body_bytes = len(body)
    length = body_offset + body_bytes
    head = _CHECKED_PREFIX.pack(body_bytes, tags_bytes, body_offset) + pack_header(entry.header) + packed_tags
    checksum = crc32c(head)
    if body_bytes:
        checksum = crc32c(body, checksum)
    padded_bytes = align(length)
    pieces = (_UNCHECKED_PREFIX.pack(checksum, length, lsn) + head, body, _PADDING[: padded_bytes - length])
    return Frame(pieces, length, padded_bytes, body_offset, int(entry.header.kind), tags)


@functools.lru_cache(maxsize=4096)
def _lay_out(tags: tuple[str, ...]) -> tuple[tuple[bytes, ...], int, bytes, int]:
    """The distinct tags, the size of their bytes in a frame, these bytes padded up to the body, and the body's offset.

    Writers use few sets of tags.
    """
    encoded = tuple({encode_tag(tag): None for tag in tags})
    packed = b"".join([bytes((len(tag),)) + tag for tag in encoded])
    if len(packed) > MAX_TAGS_BYTES:
        raise InvalidEntry(
            f"the {len(encoded)} tags of an entry, {tags[0]!r} among them, take {len(packed)} bytes, more than"
            f" {MAX_TAGS_BYTES}; append several entries in one append instead"
        )
    body_offset = align(_TAGS_OFFSET + len(packed))
    return encoded, len(packed), packed.ljust(body_offset - _TAGS_OFFSET, b"\0"), body_offset


def check(view: memoryview, location: Location, lsn: int, path: str) -> None:
    """Raises `Corrupted` unless the frame at `location` is the one that was written there as `lsn`."""
    offset = location.offset
    if offset + location.length > len(view):
        raise Corrupted(f"LSN {lsn} in {path} at {offset}: the file ends before the entry does; {_ADVICE}")
    checksum, length, stored_lsn, _, _, body_offset = PREFIX.unpack_from(view, offset)
    if stored_lsn != lsn:
        raise Corrupted(f"LSN {lsn} in {path} at {offset}: the bytes there claim to be LSN {stored_lsn}; {_ADVICE}")
    if length != location.length or body_offset != location.body_offset:
        raise Corrupted(
            f"LSN {lsn} in {path} at {offset}: {length} bytes long there and {location.length} in the index; {_ADVICE}"
        )
    found = crc32c(view[offset + _CHECKED_FROM : offset + length])
    if found != checksum:
        raise Corrupted(f"LSN {lsn} in {path} at {offset}: checksum {found:08x} is not {checksum:08x}; {_ADVICE}")


def record(view: memoryview, buffer: pa.Buffer, location: Location, lsn: int, path: str) -> Record:
    """Check the frame and view it as a record. `view` and `buffer` are the same bytes, a whole segment."""
    check(view, location, lsn, path)
    header = unpack_header(view, location.offset + PREFIX.size)
    body = buffer.slice(location.offset + location.body_offset, location.length - location.body_offset)
    return Record(lsn, header, body)


def scan(view: memoryview, segment: int, path: str) -> Iterator[tuple[int, Location, tuple[str, ...]]]:
    """Every frame of a segment's committed bytes, found without the index: (LSN, location, tags)."""
    offset = 0
    while offset < len(view):
        if offset + _TAGS_OFFSET > len(view):
            raise Corrupted(f"{path} at {offset}: half a frame before the end of what was committed; {_ADVICE}")
        _, length, lsn, body_bytes, tags_bytes, body_offset = PREFIX.unpack_from(view, offset)
        if (
            body_bytes > MAX_BODY_BYTES
            or body_offset + body_bytes != length
            or not _TAGS_OFFSET + tags_bytes <= body_offset <= length
        ):
            raise Corrupted(f"LSN {lsn} in {path} at {offset}: its lengths contradict each other; {_ADVICE}")
        kind = view[offset + PREFIX.size + 1]
        location = Location(segment, offset, length, body_offset, kind)
        check(view, location, lsn, path)
        packed = bytes(view[offset + _TAGS_OFFSET : offset + _TAGS_OFFSET + tags_bytes])
        yield lsn, location, tuple(_unpack_tags(packed))
        offset += align(length)


def _unpack_tags(packed: bytes) -> Iterator[str]:
    at = 0
    while at < len(packed):
        end = at + 1 + packed[at]
        yield packed[at + 1 : end].decode()
        at = end


_ADVICE = "the disk or another program damaged it: run `python -m sharedlog.check` on the log's directory"
