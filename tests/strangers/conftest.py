"""The specs in project/ are run by the tests here, not collected beside them."""

collect_ignore = ["project"]
