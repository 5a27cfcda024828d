"""The directories `/skylinks` and `/hns`."""
