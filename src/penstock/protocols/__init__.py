"""Front ends: bytes in, commands to the shard, bytes out. One package a protocol."""
