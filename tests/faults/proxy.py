"""Proxy before a server that cuts connections, loses answers, or accepts and stays silent."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading

PIECE = 65_536


class Proxy:
    """Proxy to a port on loopback until `close`; `away`: as if the server were down."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._open: set[socket.socket] = set()
        self._lose: re.Pattern[bytes] | None = None
        self.lost = 0
        self.away = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.uri = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> int:
        """End all connections at once, in the middle of their data. Return their number."""
        ends = [end for end in tuple(self._open) if _reset(end)]
        return len(ends) // 2

    def lose_answer(self, request: str) -> None:
        """Drop the answer to the next request that matches; the server carries it out."""
        self._lose = re.compile(request.encode())

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                inside, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self.away:
                    raise ConnectionRefusedError
                outside = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # the server is down: so is this
                _reset(inside)
                continue
            self._open |= {inside, outside}
            deaf = threading.Event()
            for ends in ((inside, outside, None), (outside, inside, deaf)):
                threading.Thread(target=self._pass_on, args=(*ends, deaf), daemon=True).start()

    def _pass_on(
        self,
        source: socket.socket,
        target: socket.socket,
        answers: threading.Event | None,
        deaf: threading.Event,
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE):
                if answers is None and self._lose and self._lose.search(piece):
                    self._lose = None
                    deaf.set()
                if answers is not None and deaf.is_set():
                    self.lost += 1
                    break
                target.sendall(piece)
        for end in (source, target):
            _reset(end)
            self._open.discard(end)


def _reset(end: socket.socket) -> bool:
    """Close a connection with a reset. Return True if it was open."""
    try:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.shutdown(socket.SHUT_RDWR)
        end.close()
    except OSError:
        return False
    return True
