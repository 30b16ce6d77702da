"""What a load did, or would do, or why it was refused: words and JSON out of a plan."""

from __future__ import annotations

from firekeep.report._make import make_report
from firekeep.report._report import ConstantDifference, LoadError, LoadReport, NothingMatchedError, Problem, Renamed

__all__ = ["ConstantDifference", "LoadError", "LoadReport", "NothingMatchedError", "Problem", "Renamed", "make_report"]
