"""The whole broker against a naive model: stateful tests, and a simulator that replays a seed."""
