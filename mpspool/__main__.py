"""`python -m mpspool`: the command line."""

from mpspool.cli import main

if __name__ == "__main__":
    main()
