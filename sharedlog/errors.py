"""What can go wrong with a log, as one small tree. Every message says what to do."""

from collections.abc import Mapping


class LogError(Exception):
    """Root of everything the log and the snapshot store raise on purpose."""


class Fenced(LogError):
    """A conditional append found other metadata than it expected: somebody newer is at work.

    Whoever receives it must stop writing. Nothing of the append is in the log.
    """

    def __init__(self, expected: Mapping[str, int], found: Mapping[str, int]) -> None:
        self.expected = dict(expected)
        self.found = dict(found)
        super().__init__(expected, found)

    def __str__(self) -> str:
        stale = ", ".join(
            f"{key} is {self.found[key]}, expected {value}"
            for key, value in self.expected.items()
            if self.found[key] != value
        )
        return f"append fenced: {stale}; a newer instance owns this role, so this process must end"


class Trimmed(LogError):
    """A read asked for entries that the log no longer holds."""

    def __init__(self, tag: str, after: int, first: int) -> None:
        self.tag = tag
        self.after = after
        self.first = first
        super().__init__(tag, after, first)

    def __str__(self) -> str:
        return (
            f"cannot read tag {self.tag!r} after LSN {self.after}: the log was trimmed and now begins"
            f" at LSN {self.first}; read after {self.first - 1} or later"
        )


class LogFull(LogError):
    """No room for an append (disk, size limit or index map). Nothing of it is visible; trim and retry."""


class Corrupted(LogError):
    """Bytes on disk do not match their checksum. The message names the LSN and the file."""


class UnknownFormat(LogError):
    """The log was written by another format version than this code reads."""


class InvalidEntry(LogError, ValueError):
    """An entry that no log may take: without tags, with an empty tag, or too large."""
