"""Where the time of kernels goes, as one HTML page or as data.

``flashsmith.report.page`` renders the page; it needs jinja2.
"""

from flashsmith.report.collect import make_report
from flashsmith.report.document import document_of
from flashsmith.report.model import Report
from flashsmith.report.results import Results, find_results, read_results

__all__ = ["Report", "Results", "document_of", "find_results", "make_report", "read_results"]
