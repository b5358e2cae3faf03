"""To which names a server answers.

A web page may give its own name the address of this machine after it was loaded (DNS rebinding). For the browser the
server is then the page's own: it may send to it and read from it. What gives the page away is the `Host` header, which
still has the page's name. So every HTTP port answers only to names that nobody else can make lead here:

- addresses, whichever they are: there is no name to be given another address
- `localhost`, and names that end in `.localhost`: browsers and systems keep them for this machine
- the names that the server listens on or advertises, and those that `[server] hosts` lists

A request without a `Host` (HTTP/1.0) is answered: browsers always send one.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from penstock.server.settings import EVERY_HOST, Settings

STATUS = 421
CODE = "MisdirectedRequest"
_REMEMBERED_MAX = 256
_SHOWN_MAX = 100
_WILDCARD_ADDRESSES = ("", "0.0.0.0", "::")


class Hosts:
    """The names of a server, and what patterns say of others.

    >>> hosts = Hosts(["penstock.svc", "*.example.org"])
    >>> [hosts.allows(host) for host in ("LOCALHOST:9324", "10.1.2.3", "[::1]:80", "penstock.svc.", "a.example.org:1")]
    [True, True, True, True, True]
    >>> [hosts.allows(host) for host in ("evil.example", "example.org", "127.0.0.1.evil.example", "localhost:x", "::1")]
    [False, False, False, False, False]
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        named = [pattern.lower().rstrip(".") for pattern in patterns]
        self._is_open = EVERY_HOST in named
        self._names = frozenset(name for name in named if not name.startswith("*")) | {"localhost"}
        self._endings = (".localhost", *(name[1:] for name in named if name.startswith("*.")))
        self.remembered: set[str] = set()
        """Headers that were looked at and found good."""

    def allows(self, host: str) -> bool:
        """Whether a request with this `Host` header is answered."""
        if host in self.remembered or self._is_open:
            return True
        if not self.knows(host):
            return False
        if len(self.remembered) < _REMEMBERED_MAX:
            self.remembered.add(host)
        return True

    def knows(self, host: str) -> bool:
        """Whether it is a name, or an address, that nobody else can make lead here: `*` does not count."""
        name = _name_of(host)
        return name in self._names or name.endswith(self._endings) or _is_address(name)

    @staticmethod
    def refusal(host: str) -> str:
        """What to say to who asks for another name.

        >>> Hosts.refusal("evil.example:9324")
        "this server does not answer to the host 'evil.example:9324': add its name to [server] hosts in penstock.toml"
        """
        shown = ascii(host[:_SHOWN_MAX])
        return f"this server does not answer to the host {shown}: add its name to [server] hosts in penstock.toml"


def hosts_of(settings: Settings) -> Hosts:
    """The names of a server with these settings: those it listens on and advertises, and those that are listed."""
    server, cluster, nsq, lookup = settings.server, settings.cluster, settings.nsq, settings.lookup
    own = [server.host, lookup.host, cluster.link_host]
    own += [name for name in (nsq.broadcast_address, lookup.broadcast_address) if name]
    if cluster.link_address is not None:
        own.append(_name_of(cluster.link_address))
    if any(name in _WILDCARD_ADDRESSES for name in own):
        own.append(socket.gethostname())
    return Hosts([*(name for name in own if name not in _WILDCARD_ADDRESSES), *server.hosts])


def host_of_target(target: bytes) -> str:
    """The host of a request's target that is a whole URL, as to a proxy: it counts, and not the header alone.

    >>> host_of_target(b"http://evil.example:9324/x"), host_of_target(b"/x")
    ('evil.example:9324', '')
    """
    if target.startswith(b"/"):
        return ""
    rest = target.decode("latin-1").partition("://")[2]
    for separator in "/?#":
        rest = rest.partition(separator)[0]
    return rest.rpartition("@")[2]


def _name_of(host: str) -> str:
    """A header without its port, in lower case; "" if it is none.

    >>> _name_of("Penstock.Example.:9324"), _name_of("[fe80::1%25eth0]:80"), _name_of("a:b"), _name_of("[::1")
    ('penstock.example', 'fe80::1%25eth0', '', '')
    """
    if host.startswith("["):
        name, bracket, rest = host[1:].partition("]")
        is_whole = bool(bracket) and (not rest or rest.startswith(":"))
        name, port = (name if is_whole and ":" in name else ""), rest[1:]
    else:
        name, _, port = host.partition(":")
    if port and not (port.isascii() and port.isdigit()):
        return ""
    return name.lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
