"""The deterministic core: commands in; replies, changes and the next deadline out. No I/O, clock or randomness."""
