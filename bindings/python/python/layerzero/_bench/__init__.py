"""Benchmarks that need more than a clock: `lz bench gpu`. Nothing here is imported with the package."""
