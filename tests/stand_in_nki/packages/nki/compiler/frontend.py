"""Imitates the frontends."""


class ParserFrontend:
    """Parses."""
