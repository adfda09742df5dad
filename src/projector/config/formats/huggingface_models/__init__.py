"""How the ``config.json`` of each Hugging Face architecture is read."""
