"""One file a schedule: ``check`` says whether it can run, ``order`` returns what it does."""
