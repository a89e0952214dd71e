"""What is the same of all files that no machine has at hand."""

from typing import Mapping


class RemoteFiles:
    """Files of which each range is a request of its own: nothing of them stays open, or on a disk of this machine. A part of `Files`."""

    is_local = False

    def discard(self, path: str, begin: int, num_bytes: int) -> bool:
        return False

    def release(self) -> None:
        pass

    def can_hold(self, sizes: Mapping[str, int]) -> bool:
        return False
