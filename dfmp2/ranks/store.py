"""Small values that all ranks have in common, kept by torchrun on the host of rank 0."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dfmp2.errors import Interrupted


class Store:
    """A store of torch.distributed; it is safe to use from several threads.

    Every method raises Interrupted when whoever keeps it is gone: then this run is over.
    """

    def __init__(self, store: Any) -> None:
        self._store = store

    def set(self, key: str, value: bytes | str) -> None:
        """Put a value there."""
        with _reached():
            self._store.set(key, value)

    def claim(self, key: str, value: str) -> None:
        """Put a value there unless there is one."""
        with _reached():
            self._store.compare_set(key, "", value)

    def has(self, *keys: str) -> bool:
        """Whether all of these are there."""
        with _reached():
            return bool(self._store.check(list(keys)))

    def get(self, key: str) -> bytes:
        """The value of a key that is there."""
        with _reached():
            return bytes(self._store.get(key))

    def drop(self, key: str) -> None:
        """Forget a value."""
        with _reached():
            self._store.delete_key(key)

    def add(self, key: str, amount: int = 0) -> int:
        """Change a number, 0 where there is none; its new value."""
        with _reached():
            return int(self._store.add(key, amount))


@contextmanager
def _reached() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # torch.distributed.DistError and what older versions raise
        raise Interrupted(f"torchrun cannot be reached ({str(error).splitlines()[0]})") from error
