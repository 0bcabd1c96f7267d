"""Reports of runs, which read events and results."""

from tlmatrix.report.text import describe_finding, describe_group, describe_result
from tlmatrix.triage.groups import Group, group_failures

__all__ = ["Group", "describe_finding", "describe_group", "describe_result", "group_failures"]
