"""Run the command line as `python -m firekeep`."""

from firekeep.cli import main

if __name__ == "__main__":
    main()
