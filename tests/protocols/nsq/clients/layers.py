"""A connection of the V2 protocol with TLS, deflate or snappy under it."""

from __future__ import annotations

import ssl
import zlib
from pathlib import Path
from typing import Any

import snappy

from tests.protocols.nsq.clients.wire import Address, Connection


class Layered(Connection):
    """Upgraded as IDENTIFY agreed: TLS first, then a compression. Each is answered with OK, over the new layer."""

    def __init__(self, address: Address, certificate: Path | None = None, **identity: Any) -> None:
        super().__init__(address)
        self._compress: Any = None
        self._decompress: Any = None
        self.agreed = self.identify(tls_v1=certificate is not None, **identity)
        if self.agreed["tls_v1"]:
            context = ssl.create_default_context(cafile=str(certificate))
            self.socket = context.wrap_socket(self.socket, server_hostname=address[0])
            assert self.response() == b"OK"
        if self.agreed["deflate"] or self.agreed["snappy"]:
            self._start_compression()
            assert self.response() == b"OK"

    def _start_compression(self) -> None:
        if self.agreed["deflate"]:
            self._compress = zlib.compressobj(self.agreed["deflate_level"], zlib.DEFLATED, -zlib.MAX_WBITS)
            self._decompress = zlib.decompressobj(-zlib.MAX_WBITS).decompress
        else:
            self._compress = snappy.StreamCompressor()
            self._decompress = snappy.StreamDecompressor().decompress
        self._buffer[:] = self._decompress(bytes(self._buffer))

    def send(self, *pieces: bytes) -> None:
        data = b"".join(pieces)
        if getattr(self, "_compress", None) is not None:
            data = self._compressed(data)
        self.socket.sendall(data)

    def _compressed(self, data: bytes) -> bytes:
        if self.agreed["deflate"]:
            return bytes(self._compress.compress(data) + self._compress.flush(zlib.Z_SYNC_FLUSH))
        return bytes(self._compress.add_chunk(data))

    def receive(self) -> bytes:
        data = self.socket.recv(1 << 18)
        if self._decompress is None or not data:
            return data
        return bytes(self._decompress(data)) or self.receive()
