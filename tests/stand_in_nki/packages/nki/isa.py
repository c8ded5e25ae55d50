"""Imitates nki.isa: the published names only."""

from nki.published import ISA, member


def __getattr__(name):
    return member("nisa", ISA, name)
