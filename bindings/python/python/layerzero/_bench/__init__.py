"""Benchmarks of `lz bench gpu`. Not imported with the package."""
