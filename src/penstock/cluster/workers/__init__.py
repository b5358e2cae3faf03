"""Several processes on one machine: serve --workers N."""
