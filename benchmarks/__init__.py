"""The benchmarks of the mount beside its peers (`benchmarks/run`)."""
