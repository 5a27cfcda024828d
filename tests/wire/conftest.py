"""The hypothesis profile of the codec's tests: the same examples on every run."""

from hypothesis import settings

settings.register_profile("wire", derandomize=True, deadline=None, max_examples=120, database=None)
settings.load_profile("wire")
