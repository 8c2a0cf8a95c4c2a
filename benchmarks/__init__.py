"""Microbenchmarks and comparisons with other collective libraries."""
