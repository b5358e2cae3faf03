"""What `penstock.connect` talks to: the websocket at `/v1/ws`, and the same commands over HTTP at `/v1/commands`."""
