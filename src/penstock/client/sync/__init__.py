"""The API for threads. Generated from `penstock.client.aio` by `tools/generate_sync.py`: change that."""
