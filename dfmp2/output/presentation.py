"""What results, studies and plans show of themselves: the functions that their methods call through
`dfmp2.host.deferred.presentation`."""

from __future__ import annotations

from dfmp2.output.json import result_dict
from dfmp2.output.plan import plan_dict, plan_text
from dfmp2.output.plots import study_plot
from dfmp2.output.table import frame, result_frame, study_frame
from dfmp2.output.text import report, result_html, study_html, study_report

__all__ = [
    "frame",
    "plan_dict",
    "plan_text",
    "report",
    "result_dict",
    "result_frame",
    "result_html",
    "study_frame",
    "study_html",
    "study_plot",
    "study_report",
]
