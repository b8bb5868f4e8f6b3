"""Where a guest's characters go: captured always, shown live when somebody listens."""

from collections.abc import Callable


class Console:
    """Output of one or more character devices, in the order in which they sent it."""

    def __init__(self, sink: Callable[[bytes], None] | None = None) -> None:
        self.data = bytearray()
        self.sink = sink
        """Called with each piece of output as it is sent."""

    def write(self, data: bytes) -> None:
        self.data += data
        if self.sink is not None:
            self.sink(data)

    @property
    def text(self) -> str:
        """The output as UTF-8; bytes that are not become U+FFFD."""
        return self.data.decode("utf-8", "replace")
