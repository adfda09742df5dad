"""``python -m projector`` is the command ``projector``."""

from projector.cli.main import main

if __name__ == "__main__":
    main()
