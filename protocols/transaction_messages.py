"""What tasks and transaction coordinators say to each other, and the task's end of the conversation."""

import enum
import json
import zlib
from dataclasses import dataclass

from protocols.base import Context
from sharedlog.errors import Fenced


def coordinator_of(task: str, coordinators: int) -> str:
    """Tasks are spread by a hash that is the same in every process."""
    return f"coordinator/{zlib.crc32(task.encode()) % coordinators}"


class Ask(enum.StrEnum):
    """Messages: requests of a task, and the coordinator's answers."""

    INIT = "init"
    REGISTER = "register"
    COMMIT = "commit"
    READY = "ready"
    REGISTERED = "registered"
    PREPARED = "prepared"
    ABORTED = "aborted"
    FENCED = "fenced"


@dataclass(frozen=True, kw_only=True)
class Message:
    """One request or answer about (instance, number) of the task at one end. Repeating it changes nothing."""

    ask: Ask
    instance: int
    number: int = 0
    tags: tuple[str, ...] = ()
    position: int = 0  # COMMIT: the LSN of the position entry
    current: int = 0  # FENCED: the instance that is at work

    def encode(self) -> bytes:
        return json.dumps([self.ask, self.instance, self.number, self.tags, self.position, self.current]).encode()

    @staticmethod
    def decode(message: bytes) -> "Message":
        ask, instance, number, tags, position, current = json.loads(message)
        return Message(
            ask=Ask(ask), instance=instance, number=number, tags=tuple(tags), position=position, current=current
        )


class Client:
    """Requests are idempotent, so that repeating one is always safe; answers to other questions are ignored."""

    def __init__(self, ctx: Context, coordinator: str, repeat_ms: float) -> None:
        self._ctx = ctx
        self._coordinator = coordinator
        self._repeat_us = repeat_ms * 1000
        self._open: Message | None = None
        self._asked_us = self._sent_us = 0

    def ask(self, message: Message) -> None:
        """Send, unless this very request is under way and not yet due again."""
        now_us = self._ctx.now_us()
        if self._open is None:
            self._asked_us = now_us
        if message != self._open or now_us - self._sent_us >= self._repeat_us:
            self._open, self._sent_us = message, now_us
            self._ctx.channel.send(self._coordinator, message.encode())

    def answers(self) -> list[Message]:
        """What arrived for this instance. Raises `Fenced` when a successor has made itself known."""
        arrived = [Message.decode(message) for _, message in self._ctx.channel.receive()]
        mine = [message for message in arrived if message.instance == self._ctx.instance]
        for message in mine:
            if message.ask is Ask.FENCED:
                key = f"instance/{self._ctx.name}"
                raise Fenced({key: self._ctx.instance}, {key: message.current})
        return mine

    def answered(self) -> None:
        """The open request has its answer; the time it took is counted."""
        if self._open is not None:
            key = f"{self._open.ask}_us"
            waited = self._ctx.now_us() - self._asked_us
            self._ctx.measured[key] = self._ctx.measured.get(key, 0) + waited
            self._open = None

    def forget(self) -> None:
        """Nothing is asked any more."""
        self._open = None
