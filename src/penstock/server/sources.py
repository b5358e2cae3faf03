"""Where a server's settings come from: flags, before environment variables, before penstock.toml, before defaults.

Every setting that is one value or a list has an environment variable: `PENSTOCK_` and its name, with its section in
front unless that is `[server]`. `PENSTOCK_SQS_PORT` is `[server] sqs_port`, `PENSTOCK_LOG_LEVEL` is
`[log] level`. A bad value is refused with the name of the flag, the variable or the key that it came from.
"""

from __future__ import annotations

import difflib
import os
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from penstock.core.settings import Declared, declared
from penstock.server.settings import SECTIONS, CredentialSettings, InvalidSettings, Settings, checked, load

PREFIX = "PENSTOCK_"
ACCESS_KEY, SECRET_KEY, SECRET_KEY_FILE = "PENSTOCK_ACCESS_KEY", "PENSTOCK_SECRET_KEY", "PENSTOCK_SECRET_KEY_FILE"
"""One credential, beside those of the file."""
_OF_CREDENTIALS = (ACCESS_KEY, SECRET_KEY, SECRET_KEY_FILE)
_OF_OTHERS = ("PENSTOCK_CONFIG", "PENSTOCK_URL", "PENSTOCK_TOKEN", "PENSTOCK_DATABASE", "PENSTOCK_TEST_")
"""Variables, or their beginnings, that say something to the rest of Penstock."""
_OF_KUBERNETES = re.compile(r"PENSTOCK_(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_[A-Z]+)?)")
"""What Kubernetes sets in every container, for services whose names begin with `penstock`. `..._PORT` is an address."""
_IS_AN_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


class Place(NamedTuple):
    """A setting, and the section it is in."""

    section: str
    setting: Declared


def _variables() -> dict[str, Place]:
    found: dict[str, Place] = {}
    for section, struct in SECTIONS.items():
        for each in declared(struct).values():
            if typing.get_origin(each.kind) is not dict:
                within = "" if section == "server" else f"{section}_"
                found[f"{PREFIX}{within}{each.field}".upper()] = Place(section, each)
    return found


VARIABLES: Mapping[str, Place] = _variables()
"""Every environment variable, and the setting that it is."""


def flags_of(*sections: str) -> dict[str, Place]:
    """The settings of some sections that have flags, by the name of the flag as an argument: `sqs_port`."""
    found: dict[str, Place] = {}
    for section in sections:
        for each in declared(SECTIONS[section]).values():
            if each.setting.flag is not None:
                first = each.setting.flag.split(",")[0]
                found[first.removeprefix("--").replace("-", "_")] = Place(section, each)
    return found


def gathered(
    path: str | os.PathLike[str] | None,
    environment: Mapping[str, str],
    flags: Mapping[str, Any] = {},
    places: Mapping[str, Place] = {},
) -> Settings:
    """The settings of a file, if there is one, with those of the environment and of the flags over them.

    They are not yet checked against each other. `places` says which setting each flag is.

    >>> environment = {"PENSTOCK_SQS_PORT": "1", "PENSTOCK_HTTP_PORT": "2"}
    >>> found = gathered(None, environment, {"sqs_port": "3"}, flags_of("server")).server
    >>> found.sqs_port, found.http_port, found.nsq_tcp_port
    (3, 2, 4150)
    >>> gathered(None, {"PENSTOCK_SQS_PORT": "many"})
    Traceback (most recent call last):
        ...
    penstock.server.settings.InvalidSettings: PENSTOCK_SQS_PORT is 'many': it must be a whole number from 0 to 65535
    """
    settings = Settings() if path is None else load(path)
    for name, place in VARIABLES.items():
        text = environment.get(name)
        if text and not _IS_AN_ADDRESS.match(text):
            settings = _with(settings, place, place.setting.from_text(text), name)
    for name, value in flags.items():
        if value is not None and value != []:
            found = places[name].setting.from_text(value) if isinstance(value, str) else value
            settings = _with(settings, places[name], found, f"--{name.replace('_', '-')}")
    credential = _credential(environment)
    return msgspec.structs.replace(settings, credentials=[*settings.credentials, *credential])


def _credential(environment: Mapping[str, str]) -> list[CredentialSettings]:
    """The one that the environment may give, for containers: it may do everything."""
    access_key = environment.get(ACCESS_KEY)
    given = [name for name in (SECRET_KEY, SECRET_KEY_FILE) if environment.get(name)]
    if not access_key and not given:
        return []
    if not access_key:
        raise InvalidSettings(f"{given[0]} is set, and {ACCESS_KEY} is not: set both")
    if not given:
        raise InvalidSettings(f"{ACCESS_KEY} is set, and its secret is not: set {SECRET_KEY} or {SECRET_KEY_FILE}")
    if len(given) > 1:
        raise InvalidSettings(f"{SECRET_KEY} and {SECRET_KEY_FILE} are both set: set one of them")
    if given == [SECRET_KEY]:
        return [CredentialSettings(access_key, secret_key_env=SECRET_KEY)]
    return [CredentialSettings(access_key, secret_key_file=environment[SECRET_KEY_FILE])]


def _with(settings: Settings, place: Place, value: Any, said: str) -> Settings:
    value = checked(place.setting, value, said)
    section = msgspec.structs.replace(getattr(settings, place.section), **{place.setting.field: value})
    return msgspec.structs.replace(settings, **{place.section: section})


def as_given(
    text: str, environment: Mapping[str, str], flags: Mapping[str, Any] = {}, places: Mapping[str, Place] = {}
) -> str:
    """What is said of a setting, with the name of the flag or the variable that it came from.

    >>> as_given("[sqs] account is '1': ...", {"PENSTOCK_SQS_ACCOUNT": "1"}), as_given("[sqs] account is '1': ...", {})
    ("PENSTOCK_SQS_ACCOUNT is '1': ...", "[sqs] account is '1': ...")
    """
    found = re.match(r"\[(\w+)\] (\w+)(?=:| is | has )", text)
    if found is None:
        return text
    given = {f"--{name.replace('_', '-')}": places[name] for name, value in flags.items() if value not in (None, [])}
    given |= {name: place for name, place in VARIABLES.items() if environment.get(name)}
    names = (name for name, place in given.items() if (place.section, place.setting.field) == found.groups())
    return next(names, found[0]) + text[found.end() :]


def unknown_variables(environment: Mapping[str, str], settings: Settings) -> Iterator[str]:
    """What is wrong with each variable that looks like a setting and is none.

    >>> list(unknown_variables({"PENSTOCK_SQS_PROT": "1", "PENSTOCK_SERVICE_HOST": "10.0.0.1"}, Settings()))
    ['PENSTOCK_SQS_PROT is not a setting (did you mean PENSTOCK_SQS_PORT?)']
    """
    named = {settings.cluster.secret_env, settings.zookeeper.password_env, *settings.kafka.properties_env.values()}
    named |= set(_OF_CREDENTIALS)
    named |= {variable for each in settings.credentials for variable in (each.secret_key_env, each.token_env)}
    for name in sorted(environment):
        if not name.startswith(PREFIX) or name in named or name.startswith(_OF_OTHERS):
            continue
        if name in VARIABLES:
            if _IS_AN_ADDRESS.match(environment[name]):
                yield f"{name} is {environment[name]}, as Kubernetes sets it for a service: it is ignored"
        elif not _OF_KUBERNETES.fullmatch(name) and not _IS_AN_ADDRESS.match(environment[name]):
            near = difflib.get_close_matches(name, [*VARIABLES, *_OF_CREDENTIALS], 1)
            yield f"{name} is not a setting{f' (did you mean {near[0]}?)' if near else ''}"
