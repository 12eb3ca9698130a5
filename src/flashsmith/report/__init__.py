"""Where the time of kernels goes, as one HTML page."""

from flashsmith.report.collect import make_report
from flashsmith.report.model import Report
from flashsmith.report.page import render
from flashsmith.report.results import Results, find_results, read_results

__all__ = ["Report", "Results", "find_results", "make_report", "read_results", "render"]
