"""Which server, which key, which project: from the environment, else from ``~/.nodus/config``.

The file has the shape of a kubeconfig; its keys stand apart in ``credentials`` beside it (mode 0600). Environment
variables win over the file: ``NODUS_API_URL``, ``NODUS_API_KEY``, ``NODUS_PROJECT``, ``NODUS_CONTEXT``; an empty one
counts as unset. Inside a Job, with no key at hand, the attempt's socket is used (``NODUS_RUNTIME_SOCKET``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodus.core.errors import NodusError

DEFAULT_URL = "http://127.0.0.1:8080"
RUNTIME_SOCKET = "/run/nodus/api.sock"
DATA_DIR_EXTENSION = "nodus.dev/data-dir"
ORG_EXTENSION = "nodus.dev/org"


class ConfigError(NodusError):
    """The client's configuration can't be used; the message names the file or the variable."""

    reason, status = "ConfigError", 400


@dataclass(frozen=True, slots=True)
class Connection:
    """Everything a client needs to know about its server."""

    url: str
    """The API's origin, with a path prefix where there is one, without a slash at the end."""
    api_key: str | None
    """Sent as a bearer token; None inside a Job, where the socket speaks for itself."""
    project: str
    """Where objects are looked up when a call names no project."""
    context: str | None = None
    """The configuration context the rest came from, when a file was used."""
    org: str | None = None
    """The context's organization."""
    socket: str | None = None
    """A unix socket that takes the place of the URL's host."""
    certificate_authority: str | None = None
    """A PEM file to trust besides the system's authorities, for a server with a certificate of its own."""

    def __post_init__(self) -> None:
        """Check the address.

        Raises:
            ConfigError: When it is no address of a server.
        """
        scheme, colon, rest = self.url.partition("://")
        if scheme.lower() not in ("http", "https") or not rest.strip("/"):
            likely = self.url if not colon and self.url[-1:].isalnum() else "127.0.0.1:8080"
            raise ConfigError(
                f"{self.url!r} is no address of a server", fix=f"Write it with http or https: http://{likely}"
            )


def config_path(environ: Mapping[str, str] | None = None) -> Path:
    """Return the configuration file's path: ``NODUS_CONFIG``, else ``~/.nodus/config``."""
    env = os.environ if environ is None else environ
    return Path(env.get("NODUS_CONFIG") or Path(env.get("HOME") or Path.home()) / ".nodus" / "config")


def credentials_path(config: Path) -> Path:
    """Return the file that holds the keys of a configuration: ``credentials`` beside it."""
    return config.with_name("credentials")


def load_config(path: Path) -> dict[str, Any]:
    """Return a configuration file's content; empty where there is no file.

    Nodus writes the file as JSON, which is YAML too, so that reading it costs no YAML parser.

    Raises:
        ConfigError: When the file is neither, or holds something other than a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} can't be read: {error}", fix="Check the file's permissions, or set NODUS_CONFIG."
        ) from error
    try:
        content = json.loads(text)
    except ValueError:
        content = _load_yaml(path, text)
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no mapping", fix="Move it away; `nodus login` writes a new one.")
    return content


def _load_yaml(path: Path, text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}", fix="Correct the file, or move it away.") from error


def resolve(
    *,
    url: str | None = None,
    api_key: str | None = None,
    project: str | None = None,
    context: str | None = None,
    org: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Connection:
    """Return the connection that arguments, environment and configuration file give, in this order of precedence.

    Raises:
        ConfigError: When the named context does not exist or the file can't be read.
    """
    env = os.environ if environ is None else environ
    path = config_path(env)
    wanted = context or env.get("NODUS_CONTEXT") or None
    url = url or env.get("NODUS_API_URL") or env.get("NODUS_BASE_URL") or None
    api_key = api_key or env.get("NODUS_API_KEY") or None
    project = project or env.get("NODUS_PROJECT") or None
    if wanted is None and api_key is None:
        wanted = context_of(path, org, must=True) or context_of(path, env.get("NODUS_ORG"), must=False)
    org = org or env.get("NODUS_ORG") or None
    socket = _runtime_socket(env) if url is None and api_key is None and wanted is None else None
    if socket is not None:
        return Connection(url="http://nodus", api_key=None, project=project or "default", org=org, socket=socket)
    found = _Context.find(path, wanted)
    key = api_key or found.api_key(path, env)
    return Connection(
        url=(url or found.server or DEFAULT_URL).rstrip("/"),
        api_key=key,
        project=project or found.project or "default",
        context=found.name,
        org=org or found.org,
        certificate_authority=found.certificate_authority,
    )


def context_of(path: Path, org: str | None, *, must: bool) -> str | None:
    """Return the context of an organization: the current one if it is that, else the first.

    Raises:
        ConfigError: There is none and there must be one.
    """
    if not org:
        return None
    content = load_config(path)
    known = {str(item.get("name")): _org(item.get("context") or {}) for item in content.get("contexts") or []}
    names = [name for name, of in known.items() if of == org]
    if names:
        current = content.get("current-context")
        return str(current) if current in names else names[0]
    if must:
        orgs = ", ".join(sorted({of for of in known.values() if of})) or "none"
        raise ConfigError(f"no context of {path} is of organization {org!r}", fix=f"Organizations there: {orgs}.")
    return None


def _runtime_socket(env: Mapping[str, str]) -> str | None:
    named = env.get("NODUS_RUNTIME_SOCKET")
    if named:
        return named
    return RUNTIME_SOCKET if Path(RUNTIME_SOCKET).exists() else None


@dataclass(frozen=True, slots=True)
class _Context:
    name: str | None = None
    server: str | None = None
    project: str | None = None
    org: str | None = None
    certificate_authority: str | None = None
    user: dict[str, Any] | None = None

    @classmethod
    def find(cls, path: Path, wanted: str | None) -> _Context:
        content = load_config(path)
        name = wanted or content.get("current-context")
        if not name:
            return cls()
        entry = named(content, "contexts", "context", name)
        if entry is None:
            if wanted is None:
                return cls()
            known = ", ".join(sorted(str(item.get("name")) for item in content.get("contexts") or [])) or "none"
            raise ConfigError(f"there is no context {wanted!r} in {path}", fix=f"Contexts there: {known}.")
        cluster = named(content, "clusters", "cluster", entry.get("cluster")) or {}
        return cls(
            name=name,
            server=cluster.get("server"),
            project=entry.get("namespace"),
            org=_org(entry),
            certificate_authority=cluster.get("certificate-authority"),
            user=named(content, "users", "user", entry.get("user")),
        )

    def api_key(self, path: Path, env: Mapping[str, str]) -> str | None:
        if self.name is None:
            return None
        stored = read_credentials(path).get(self.name)
        if stored:
            return stored
        user = self.user or {}
        return user.get("token") or _exec_plugin(user.get("exec"), env)


def named(content: Mapping[str, Any], plural: str, singular: str, name: object) -> dict[str, Any] | None:
    """Return the entry of that name in one of a kubeconfig's lists, or None."""
    for item in content.get(plural) or []:
        if isinstance(item, Mapping) and item.get("name") == name:
            value = item.get(singular)
            return dict(value) if isinstance(value, Mapping) else {}
    return None


def extension_of(context: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return an extension of a context; empty where it has none of that name."""
    for item in context.get("extensions") or []:
        if isinstance(item, Mapping) and item.get("name") == name:
            found = item.get("extension")
            return dict(found) if isinstance(found, Mapping) else {}
    return {}


def _org(context: Mapping[str, Any]) -> str | None:
    org = extension_of(context, ORG_EXTENSION).get("org")
    return str(org) if org else None


def _exec_plugin(plugin: Mapping[str, Any] | None, env: Mapping[str, str]) -> str | None:
    """Return the key a foreign credential plugin prints; ``nodus`` itself was asked already, by reading its file."""
    if not plugin or plugin.get("command") in (None, "nodus"):
        return None
    import subprocess

    try:
        printed = subprocess.run(
            [plugin["command"], *plugin.get("args", [])],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
            env=dict(env),
        ).stdout
        token = json.loads(printed)["status"]["token"]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"the credential plugin {plugin['command']!r} failed: {error}") from error
    return str(token)


def read_credentials(config: Path) -> dict[str, str]:
    """Return the keys by context of a configuration.

    Raises:
        ConfigError: When the credentials file is there and can't be read.
    """
    path = credentials_path(config)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} can't be read: {error}", fix="Run `nodus login`.") from error
    return {str(name): str(key) for name, key in content.items()} if isinstance(content, dict) else {}


def save_context(
    path: Path,
    *,
    name: str,
    url: str,
    org: str,
    api_key: str,
    project: str = "default",
    data_dir: Path | None = None,
    make_current: bool = False,
    key_name: str | None = None,
    certificate_authority: str | None = None,
) -> None:
    """Write a context and its key; other contexts stay as they are.

    Both files are replaced atomically and are readable by their owner alone.

    Args:
        path: The configuration file.
        name: The context, and the user in it.
        url: The server's origin.
        org: The server's organization.
        api_key: A key of it.
        project: The context's project.
        data_dir: Set for a server on this machine, so that its next start finds its key again.
        make_current: Use the context from now on; otherwise it becomes current only where none is.
        key_name: Name of the APIKey where this login made it, so that ``nodus logout`` revokes it.
        certificate_authority: PEM file to trust for the server, beside the system's.
    """
    content = load_config(path)
    cluster = url.split("://", 1)[-1]
    content.setdefault("apiVersion", "v1")
    content.setdefault("kind", "Config")
    if make_current or not content.get("current-context"):
        content["current-context"] = name
    extensions = _extensions(named(content, "contexts", "context", name), org, key_name, data_dir)
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "nodus",
        "args": ["auth", "token", "--context", name],
        "interactiveMode": "Never",
        "provideClusterInfo": False,
    }
    known = named(content, "clusters", "cluster", cluster) or {}
    authority = {"certificate-authority": certificate_authority} if certificate_authority else {}
    put(content, "clusters", {"name": cluster, "cluster": known | {"server": url} | authority})
    context = {"cluster": cluster, "user": name, "namespace": project, "extensions": extensions}
    put(content, "contexts", {"name": name, "context": context})
    put(content, "users", {"name": name, "user": {"exec": plugin}})
    credentials = read_credentials(path) | {name: api_key}
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # The key first: a context without its key would be worse than a key nobody names yet.
    write_private(credentials_path(path), credentials)
    write_private(path, content)


def _extensions(
    before: Mapping[str, Any] | None, org: str, key_name: str | None, data_dir: Path | None
) -> list[dict[str, Any]]:
    """The extensions of a context; those of before that say something else stay."""
    fresh: dict[str, dict[str, Any]] = {ORG_EXTENSION: {"org": org} | ({"key": key_name} if key_name else {})}
    if data_dir is not None:
        fresh[DATA_DIR_EXTENSION] = {"path": str(data_dir)}
    kept = [item for item in (before or {}).get("extensions") or [] if item.get("name") not in fresh]
    return [{"name": name, "extension": value} for name, value in fresh.items()] + kept


@dataclass(frozen=True, slots=True)
class LocalContext:
    """The context of a server on this machine."""

    name: str
    """The context there is, or a free name for a new one."""
    url: str | None
    """Where it says the server listens; None for a new one."""
    api_key: str | None
    """Its key; None when there is none."""
    is_current: bool
    """Whether calls without ``--context`` use it, or would if it were written."""


def local_context(path: Path, data_dir: Path, org: str = "nodus") -> LocalContext:
    """Return the context of the server with that data directory, or a free name for one.

    Args:
        path: The configuration file.
        data_dir: The server's data directory.
        org: What a new context is named after.
    """
    content = load_config(path)
    current = content.get("current-context")
    taken = set()
    for item in content.get("contexts") or []:
        taken.add(item.get("name"))
        context = item.get("context") or {}
        for extension in context.get("extensions") or []:
            if extension.get("name") == DATA_DIR_EXTENSION and extension["extension"].get("path") == str(data_dir):
                cluster = named(content, "clusters", "cluster", context.get("cluster")) or {}
                key = read_credentials(path).get(item["name"])
                return LocalContext(item["name"], cluster.get("server"), key, current == item["name"])
    name, number = org, 2
    while name in taken:
        name, number = f"{org}-{number}", number + 1
    return LocalContext(name, None, None, not current)


def put(content: dict[str, Any], plural: str, entry: dict[str, Any]) -> None:
    """Put an entry into one of a kubeconfig's lists, in the place of one with its name."""
    kept = [item for item in content.get(plural) or [] if item.get("name") != entry["name"]]
    content[plural] = [*kept, entry]


def write_private(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file at once by JSON that only its owner can read."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
    temporary.replace(path)
