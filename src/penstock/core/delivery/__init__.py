"""Who gets which message next, and what becomes of it: channels, windows, leases, retries."""
