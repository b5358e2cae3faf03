"""A real process under load, really killed."""
