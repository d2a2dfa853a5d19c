"""Base paths in a store that fsspec opens: what is wanted of them is copied into a cache, which the pool watches (ADR 22)."""
