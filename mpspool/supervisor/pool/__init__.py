"""The pool process: what should run against what does."""
