"""`python -m gyroscope`: the command line without its script, as on a machine where scripts are not on the path."""

from gyroscope.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
