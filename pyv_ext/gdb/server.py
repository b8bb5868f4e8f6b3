"""The port where a debugger connects. Only this computer can: whoever connects controls the machine."""

import socket
from collections.abc import Callable, Sequence

from pyv_ext.errors import PyvExtError
from pyv_ext.gdb.debugger import Debugger
from pyv_ext.gdb.session import End, Monitor, Session
from pyv_ext.stop import Stop, StopReason

HOST = "127.0.0.1"


def serve(
    debugger: Debugger, port: int, monitors: Sequence[Monitor] = (), listening: Callable[[int], None] | None = None
) -> Stop | None:
    """Let a debugger control the machine, from before its next instruction. None: it has gone, the program runs on.

    `port` 0 takes any free one; `listening(port)` is called when a client can connect. A client that is lost leaves
    the machine as it is, for the next one. PyvExtError when the port is taken.
    """
    try:
        server = socket.create_server((HOST, port))
    except (OSError, OverflowError) as error:
        raise PyvExtError(f"port {port}: {error}; choose another one, or 0 for any that is free") from None
    with server:
        if listening is not None:
            listening(server.getsockname()[1])
        while True:
            connection, _ = server.accept()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                session = Session(connection, debugger, monitors)
                end = session.run()
            if end is End.OVER:
                return session.stop
            if end is End.DETACHED:
                return None
            if end is End.KILLED:
                return Stop(StopReason.INTERRUPTED, text="killed by the debugger")
