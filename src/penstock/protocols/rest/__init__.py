"""REST: health, version and metrics."""
