"""The API for tasks. `penstock.client.sync`, the API for threads, is generated from this package."""
