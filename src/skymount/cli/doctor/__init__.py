"""What ``skymount doctor`` examines; a module for each group of checks."""
