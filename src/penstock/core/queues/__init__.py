"""What a queue is: its settings, its chunks being written, its numbers."""
