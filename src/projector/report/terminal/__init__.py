"""Reports on the terminal: tables and paragraphs."""
