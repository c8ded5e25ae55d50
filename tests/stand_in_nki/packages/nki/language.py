"""Imitates nki.language: the published names only."""

from nki.published import LANGUAGE, member


def __getattr__(name):
    return member("nl", LANGUAGE, name)
