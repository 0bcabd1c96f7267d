"""Reports of a run. Each only reads events and results, so a new one touches nothing else."""

from tlmatrix.report.text import describe_finding, describe_group, describe_result
from tlmatrix.triage.groups import Group, group_failures

__all__ = ["Group", "describe_finding", "describe_group", "describe_result", "group_failures"]
