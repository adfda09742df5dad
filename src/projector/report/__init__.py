"""Results as tables, reports, job files and JSON text."""
