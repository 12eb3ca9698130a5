"""The report says where the time of kernels goes, as one HTML page or as data.

``flashsmith.lab.report.page`` renders the page; it needs jinja2.
"""

from flashsmith.lab.report.collect import make_report
from flashsmith.lab.report.document import document_of
from flashsmith.lab.report.model import Report
from flashsmith.lab.report.results import Results, find_results, read_results

__all__ = ["Report", "Results", "document_of", "find_results", "make_report", "read_results"]
