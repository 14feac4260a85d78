"""`python -m loom`: the same as the command `loom`."""

from loom.cli import main

if __name__ == "__main__":
    main()
