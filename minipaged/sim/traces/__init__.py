"""Workloads from files: logs of real services, and datasets of texts.

A file is read by its path; none comes with the project. Each module knows the formats of one kind,
and :func:`read_trace` which of them a file has.
"""

from minipaged.sim.traces.read import FORMATS, read_trace
from minipaged.sim.traces.rows import TraceFormatError

__all__ = ["FORMATS", "TraceFormatError", "read_trace"]
