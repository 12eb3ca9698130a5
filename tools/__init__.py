"""Scripts over the package, and `tools.mutants`."""
