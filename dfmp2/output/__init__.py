"""Results for people and for other programs: text, JSON, CSV, HTML pages."""

from __future__ import annotations

from types import ModuleType

from dfmp2.host.deferred import register_presentation


def _presentation() -> ModuleType:
    from dfmp2.output import presentation

    return presentation


register_presentation(_presentation)
