"""Imitates nki.isa: names only."""


class Name:
    """Any name, and any name within it."""

    def __getattr__(self, name):
        return Name()


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Name()
