"""`python -m gyroscope`: the command line for machines where installed scripts are not on the path."""

from gyroscope.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
