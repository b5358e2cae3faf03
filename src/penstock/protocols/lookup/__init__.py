"""The lookup service: which node has which topic, as nsqlookupd tells it.

`registry` is what it knows, `wire` the bytes of the nodes' connections, `server` those connections, `http` what
clients ask, `service` all of it as a process. Several lookup services know nothing of each other: every node tells all
of them, and a client may ask any.
"""
