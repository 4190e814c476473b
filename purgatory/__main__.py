"""Make ``python -m purgatory`` the same as the command ``purgatory``."""

from purgatory.cli import run

if __name__ == "__main__":
    run()
