"""Coverage-guided fuzzing, with atheris, of everything that parses bytes from outside: `python -m tests.fuzz TARGET`."""
