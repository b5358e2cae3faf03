"""What the broker does for each kind of command."""
