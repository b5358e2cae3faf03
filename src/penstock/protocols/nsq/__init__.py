"""NSQ: topics and channels over TCP (protocol V2) and HTTP, as nsqd speaks them."""
