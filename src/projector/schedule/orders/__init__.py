"""One file a schedule: ``order`` or ``plan`` returns what it does, ``check`` what it refuses."""
