"""Scripts that build, measure, test and document the package."""
