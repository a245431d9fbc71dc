"""`HostGroup`: the launchers of one launch on several hosts, which agree on each phase and hear of each other's ends.

Host 0 listens, the others connect to it. Messages are lines of JSON. In rounds, every host gives a value and gets
those of all (`exchange`). A host that fails says so with its value and one that goes is noticed by its connection: in
both cases the others are told at once, in the middle of whatever they do (`watch`).
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from automap_launch.errors import ConfigError, WorkerError
from automap_launch.launcher.place import Place
from automap_launch.units import format_seconds

_VERSION = version("automap-launch")
_RETRY_SECONDS = 0.2
_GREETING_SECONDS = 10.0  # for a connection to say who it is
# A host that loses its power or its network says nothing: the kernel asks for it after this many seconds.
_SILENT_SECONDS = 30

Handler = Callable[[int, dict[str, Any] | None], None]


class HostGroup:
    """All hosts of a launch.

    Attributes:
      place: of this one.
      names: host names by number.
    """

    def __init__(self, place: Place, links: dict[int, _Link]) -> None:
        self.place = place
        self._links = links
        self._changed = threading.Condition()
        self._round = 0
        self._values: dict[tuple[int, int], Any] = {}
        self._answers: dict[int, list[Any]] = {}
        self._failed: list[int] = []
        self._gone: set[int] = set()
        self._closed = False
        self._on_failure: Callable[[int], None] | None = None
        self.names: list[str] = []
        for link in links.values():
            link.listen(self._receive)
        self.names = [name or "?" for name in self.exchange(socket.gethostname())]

    @classmethod
    def meet(cls, place: Place, seconds: float) -> HostGroup:
        """Returns when all hosts are there.

        Raises:
          WorkerError: they were not within `seconds`, or the port is taken.
          ConfigError: a host was told another number of hosts, a number that another one has, or has another version.
        """
        deadline = time.monotonic() + seconds
        limit = format_seconds(seconds)
        if place.host == 0:
            return cls(place, _wait_for_all(place, deadline, limit))
        return cls(place, {0: _go_to(place, deadline, limit)})

    def exchange(self, value: Any, *, failed: bool = False, give_up: Callable[[], bool] = lambda: False) -> list[Any]:
        """The values that all hosts gave in this round, by host; None for one that has gone. Waits for the slowest.

        Args:
          value: of JSON.
          failed: this host cannot go on: the others are told now.
          give_up: asked again and again: whether to wait no longer, as if those that are missing had gone.
        """
        number = self._round
        self._round += 1
        values = self._values_of(number, value, failed, give_up)
        with self._changed:  # who failed in this round has said so before it ended
            self._failed = [host for host in self._failed if host in self._gone]
        return values

    def _values_of(self, number: int, value: Any, failed: bool, give_up: Callable[[], bool]) -> list[Any]:
        me = self.place.host
        message = {"round": number, "value": value, "failed": failed}
        if me == 0:
            if failed:
                self._tell(0)
            self._wait(lambda: all((number, k) in self._values or k in self._gone for k in self._links), give_up)
            values = [value, *(self._values.get((number, k)) for k in range(1, self.place.hosts))]
            for link in self._links.values():
                link.send({"round": number, "values": values, "gone": sorted(self._gone)})
            return values
        self._links[0].send(message)
        self._wait(lambda: number in self._answers or 0 in self._gone, give_up)
        return self._answers.get(number, [value if k == me else None for k in range(self.place.hosts)])

    @contextmanager
    def watch(self, on_failure: Callable[[int], None]) -> Iterator[None]:
        """While entered, `on_failure` gets the number of a host that failed or has gone; called in another thread."""
        with self._changed:
            self._on_failure = on_failure
            for host in self._failed:
                on_failure(host)
        try:
            yield
        finally:
            with self._changed:
                self._on_failure = None

    def require_all(self, doing: str) -> None:
        """Raises WorkerError when a host has gone. Args: doing: what it was needed for."""
        with self._changed:
            gone = sorted(self._gone)
        if gone:
            raise WorkerError(
                f"{self.name(gone[0])} has gone while {doing}", exit_code=1, hint="its own output says why"
            )

    def name(self, host: int) -> str:
        return f"host {host} ({self.names[host]})" if self.names else f"host {host}"

    def close(self) -> None:
        with self._changed:
            self._closed = True
        for link in self._links.values():
            link.close()

    def _wait(self, condition: Callable[[], bool], give_up: Callable[[], bool]) -> None:
        with self._changed:
            while not condition() and not give_up():
                self._changed.wait(_RETRY_SECONDS)  # signals are handled between two waits

    def _receive(self, host: int, message: dict[str, Any] | None) -> None:
        with self._changed:
            if self._closed:  # it is we who go
                return
            if message is None:
                self._gone.add(host)
            elif "values" in message:
                self._answers[message["round"]] = message["values"]
                self._gone.update(message["gone"])
            elif "round" in message:
                self._values[message["round"], host] = message["value"]
            if message is None or message.get("failed") is True:
                self._fail(host)
            elif "host" in message:
                self._fail(message["host"])
            self._changed.notify_all()
        if self.place.host == 0 and (message is None or message.get("failed") is True):
            self._tell(host)

    def _fail(self, host: int) -> None:
        self._failed.append(host)
        if self._on_failure is not None:
            self._on_failure(host)

    def _tell(self, failed: int) -> None:
        for host, link in self._links.items():
            if host != failed:
                link.send({"host": failed})


class _Link:
    """One connection: lines of JSON both ways."""

    def __init__(self, connection: socket.socket, host: int) -> None:
        self._connection, self._host = connection, host
        self._file = connection.makefile("rb")
        self._sending = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        """What cannot be sent is lost: the reader learns that the other one has gone."""
        with self._sending, contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """The next message; None at the end, and for what is no message of ours."""
        try:
            message = json.loads(self._file.readline())
        except (OSError, ValueError):
            return None
        return message if isinstance(message, dict) else None

    def listen(self, handler: Handler) -> None:
        """Gives each message, and None at the end, to `handler` in a thread of its own."""

        def read() -> None:
            while (message := self.receive()) is not None:
                handler(self._host, message)
            handler(self._host, None)

        self._connection.settimeout(None)
        threading.Thread(target=read, name=f"messages of host {self._host}", daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def _wait_for_all(place: Place, deadline: float, limit: str) -> dict[int, _Link]:
    links: dict[int, _Link] = {}
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("", place.port))
        except OSError as error:
            raise WorkerError(
                f"cannot listen on port {place.port} (launcher.coordinator={place.coordinator}): {error.strerror}",
                exit_code=1,
                hint="name another port, the same one on all hosts",
            ) from error
        server.listen(place.hosts)
        while len(links) < place.hosts - 1:
            server.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                connection, _ = server.accept()
            except TimeoutError:
                missing = ", ".join(str(k) for k in range(1, place.hosts) if k not in links)
                raise WorkerError(
                    f"of {place.hosts} hosts, these had not come within {limit}: {missing}",
                    exit_code=1,
                    hint=f"start the same command there, with launcher.host=N; they must reach {place.coordinator}",
                ) from None
            _welcome(connection, place, links)
    return links


def _welcome(connection: socket.socket, place: Place, links: dict[int, _Link]) -> None:
    """Adds the host that came to `links`; one that does not belong is told why, and no reason to fail here."""
    _prepare(connection)
    greeting = _Link(connection, -1).receive() or {}
    host, reason = greeting.get("number"), None
    if greeting.get("hosts") != place.hosts:
        reason = f"host 0 was started with launcher.hosts={place.hosts}, this one with {greeting.get('hosts')}"
    elif greeting.get("version") != _VERSION:
        reason = f"host 0 has automap-launch {_VERSION}, this one {greeting.get('version')}"
    elif not isinstance(host, int) or not 0 < host < place.hosts or host in links:
        reason = f"launcher.host={host} is another host's number already"
    if reason is None:
        assert isinstance(host, int)
        links[host] = _Link(connection, host)
        links[host].send({"welcome": True})
    else:
        refused = _Link(connection, -1)
        refused.send({"refused": reason})
        refused.close()


def _go_to(place: Place, deadline: float, limit: str) -> _Link:
    while True:
        try:
            connection = socket.create_connection((place.address, place.port), timeout=_GREETING_SECONDS)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise WorkerError(
                    f"host 0 did not answer at {place.coordinator} within {limit}: {error}",
                    exit_code=1,
                    hint="launcher.coordinator is an address of host 0 that this host can reach; "
                    "127.0.0.1 and localhost are this host itself",
                ) from error
            time.sleep(_RETRY_SECONDS)
    _prepare(connection)
    link = _Link(connection, 0)
    link.send({"number": place.host, "hosts": place.hosts, "version": _VERSION})
    answer = link.receive() or {}
    if "welcome" not in answer:
        reason = answer.get("refused", f"what answers at {place.coordinator} is no automap-launch")
        raise ConfigError(str(reason), hint="the same command on all hosts; launcher.host=0, 1, ... tells them apart")
    return link


def _prepare(connection: socket.socket) -> None:
    connection.settimeout(_GREETING_SECONDS)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # not on macOS
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENT_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _SILENT_SECONDS // 3)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
