"""All settings. Each comes from the environment, or has a default that works on any machine.

docs/settings.md has the table. A wrong value stops the start, with a hint.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import dj_database_url
from django.core.exceptions import ImproperlyConfigured
from django.core.management.utils import get_random_secret_key
from dotenv import dotenv_values

from mcp_runtime.system import console

BASE_DIR = Path(__file__).resolve().parent.parent
MANAGED_PORTS = (20000, 30000)
SHORTEST_SECRET_KEY = 32


def read_env_file(path: Path) -> None:
    """Take the variables of the file that the environment does not have. So all commands have the same settings."""
    if not path.is_file():
        if os.environ.get("GUILD_HALL_ENV_FILE", "").strip() and not path.exists():
            raise ImproperlyConfigured(f"GUILD_HALL_ENV_FILE={path}: there is no such file; give the path of another.")
        return
    try:
        values = dotenv_values(path, interpolate=False, encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ImproperlyConfigured(f"{path}: it cannot be read ({error}); fix it, or move it away.") from error
    for name, value in values.items():
        os.environ.setdefault(name, value or "")


def env_int(name: str, default: int, lowest: int, highest: int) -> int:
    text = os.environ.get(name, "").strip() or str(default)
    if not re.fullmatch(r"\d{1,12}", text) or not lowest <= int(text) <= highest:
        raise ImproperlyConfigured(f"{name}={text!r}: give a whole number from {lowest} to {highest}, e.g. {default}.")
    return int(text)


def env_name(name: str, default: str) -> str:
    text = os.environ.get(name, "").strip() or default
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text):
        raise ImproperlyConfigured(f"{name}={text!r}: give 1 to 64 letters, digits, '.', '-' and '_', e.g. {default}.")
    return text


def env_choice(name: str, choices: tuple[str, ...]) -> str:
    text = os.environ.get(name, "").strip()
    if text and text not in choices:
        raise ImproperlyConfigured(f"{name}={text!r}: give {' or '.join(choices)}, or leave it out.")
    return text


def env_list(name: str) -> list[str]:
    return [part.strip() for part in os.environ.get(name, "").split(",") if part.strip()]


def env_labels(name: str) -> list[str]:
    labels = env_list(name)
    for label in labels:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", label):
            raise ImproperlyConfigured(
                f"{name}={label!r}: give labels of 1 to 64 letters, digits, '.', '-' and '_', separated by commas, "
                "e.g. gpu,eu-west."
            )
    return labels


def env_path(name: str, default: Path) -> Path:
    text = os.environ.get(name, "").strip()
    return (Path.cwd() / Path(text).expanduser()).resolve() if text else default


def env_file(name: str, *, required: bool = False) -> Path | None:
    path = env_path(name, Path()) if os.environ.get(name, "").strip() else None
    if (path is None and required) or (path is not None and not path.is_file()):
        found = f"{path}: there is no such file" if path is not None else "GUILD_HALL_NODE_URL begins with https"
        raise ImproperlyConfigured(f"{name}: {found}; give the path of a PEM file.")
    return path


def env_folder(name: str) -> Path | None:
    path = env_path(name, Path()) if os.environ.get(name, "").strip() else None
    if path is not None and not path.is_dir():
        raise ImproperlyConfigured(f"{name}: {path}: there is no such folder; give the path of another.")
    return path


def env_port_range(name: str) -> tuple[int, int]:
    lowest, highest = MANAGED_PORTS
    text = os.environ.get(name, "").strip() or f"{lowest}-{highest}"
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    if not match or not lowest <= int(match[1]) <= int(match[2]) <= highest:
        raise ImproperlyConfigured(
            f"{name}={text!r}: give FIRST-LAST inside the managed range {lowest}-{highest}, e.g. 20000-20499."
        )
    return int(match[1]), int(match[2])


def env_url(name: str, default: str, schemes: tuple[str, ...]) -> str:
    """Read an address. Errors do not show it, because it may contain a password."""
    text = os.environ.get(name, "").strip() or default
    if ":memory:" in text:
        raise ImproperlyConfigured(f"{name}: web and runtime cannot share a database in memory; give a file's address.")
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises for a port that is none
    except ValueError as error:
        scheme = schemes[0]
        raise ImproperlyConfigured(f"{name}: not an address ({error}); give e.g. {scheme}://host:1234/name.") from None
    if text and parts.scheme not in schemes:
        raise ImproperlyConfigured(f"{name}: the address must begin with {' or '.join(s + '://' for s in schemes)}.")
    return text


def env_node_url(name: str) -> str:
    """Read the address of the listener for other nodes. It has no path, because all of it is the gateway's."""
    text = os.environ.get(name, "").strip().removesuffix("/")
    match = re.fullmatch(r"(https?)://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})", text)
    if text and not (match and 0 < int(match[3]) <= 65535):
        raise ImproperlyConfigured(
            f"{name}={text!r}: give http:// or https://, a host and a port, e.g. http://10.0.0.5:8200."
        )
    return text


def env_web_url(name: str, example: str) -> str:
    """Read an address of http or https, without a slash at its end. It may have a path, as a prefix of all others."""
    text = os.environ.get(name, "").strip().removesuffix("/")
    pattern = r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:(\d{1,5}))?(/[A-Za-z0-9._~-]+)*"
    match = re.fullmatch(pattern, text)
    if text and not (match and 0 < int(match[3] or 80) <= 65535):
        raise ImproperlyConfigured(
            f"{name}={text!r}: give http:// or https:// and a host, if needed with a port and a prefix, e.g. {example}."
        )
    return text


def env_hosts(name: str) -> list[str]:
    hosts = env_list(name)
    for host in hosts:
        if not re.fullmatch(r"\.?[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]", host):
            raise ImproperlyConfigured(f"{name}: {host!r} is no host name; give hall.example.com, without a scheme.")
    return hosts


def env_origins(name: str) -> list[str]:
    origins = env_list(name)
    for origin in origins:
        if not re.fullmatch(r"https?://[A-Za-z0-9.*\[\]:-]+", origin):
            raise ImproperlyConfigured(f"{name}: {origin!r} is not an origin; give https://hall.example.com, no path.")
    return origins


def private_umask() -> int:
    """Keep the hall's files private. Returns the umask with which the hall was started. It is for the members."""
    before = os.umask(0o077)
    # A process that another process of the hall starts has the private umask from the start.
    if not re.fullmatch(r"[0-7]{3}", os.environ.get("GUILD_HALL_USER_UMASK", "")):
        os.environ["GUILD_HALL_USER_UMASK"] = f"{before:03o}"
    return int(os.environ["GUILD_HALL_USER_UMASK"], 8)


def private_folder(path: Path) -> Path:
    path = path.resolve()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
        status = path.stat()
    except OSError as error:
        raise ImproperlyConfigured(
            f"GUILD_HALL_DATA_DIR={path}: {error.strerror}. Choose a folder that you may write to."
        ) from error
    if status.st_mode & 0o077:
        close_to_others(path, status)
    return path


def close_to_others(path: Path, status: os.stat_result) -> None:
    """Make the data folder private, because it has the password hashes, the secret key and the logs."""
    if status.st_uid != os.geteuid() and os.geteuid() != 0:  # root closes it for its owner
        raise ImproperlyConfigured(
            f"GUILD_HALL_DATA_DIR={path}: it belongs to another user, and others may read it. "
            f"Run: sudo chown {os.geteuid()} {path} && sudo chmod 700 {path}. "
            f"Or choose a folder that does not exist yet, e.g. {path / 'hall'}."
        )
    with contextlib.suppress(OSError):  # a file system without modes: roster.W002 says so
        path.chmod(0o700)
    if not path.stat().st_mode & 0o077:
        message = f"other users of this machine could read the data folder {path}; it is private now (mode 0700)"
        writer = console.Writer(sys.stderr)
        writer.write(console.line("hall", message))
        writer.flush()


def secret_key_in(path: Path) -> str:
    """The secret key in `path`, made on first run. Linking a finished file is safe if two first runs race."""
    if not path.exists():
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.touch(mode=0o600)
        draft.write_text(get_random_secret_key())
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links, most likely without modes as well
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    return path.read_text().strip()


def existing_secret_key(path: Path) -> str:
    """The key in the file that GUILD_HALL_SECRET_KEY_FILE names."""
    try:
        key = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is no text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise ImproperlyConfigured(
            f"GUILD_HALL_SECRET_KEY_FILE={path}: {reason}; give the path of a copy of the file secret-key in the data "
            "folder of another node."
        ) from error
    if len(key) < SHORTEST_SECRET_KEY:
        raise ImproperlyConfigured(
            f"GUILD_HALL_SECRET_KEY_FILE={path}: the key in it has fewer than {SHORTEST_SECRET_KEY} characters; give "
            "the path of a file with a longer key, e.g. of 50 random letters and digits."
        )
    return key


# The hall ---------------------------------------------------------------------------------------------------------

ENV_FILE = env_path("GUILD_HALL_ENV_FILE", BASE_DIR / ".env")
read_env_file(ENV_FILE)
GUILD_HALL_HOST = os.environ.get("GUILD_HALL_HOST", "").strip() or "127.0.0.1"
GUILD_HALL_PORT = env_int("GUILD_HALL_PORT", 8000, 1, 65535)
GUILD_HALL_GATEWAY_PORT = env_int("GUILD_HALL_GATEWAY_PORT", 8100, 1, 65535)
# Where people reach the web, for links that the hall gives out. Empty if that is its own host and port.
GUILD_HALL_WEB_URL = env_web_url("GUILD_HALL_WEB_URL", "https://hall.example.com")
GUILD_HALL_PORT_RANGE = env_port_range("GUILD_HALL_PORT_RANGE")
GUILD_HALL_MEMBERS_DIR = env_path("GUILD_HALL_MEMBERS_DIR", BASE_DIR / "guild-members")
USER_UMASK = private_umask()
GUILD_HALL_DATA_DIR = private_folder(env_path("GUILD_HALL_DATA_DIR", BASE_DIR / "var"))
# The name of this machine among the nodes of the hall.
GUILD_HALL_NODE = env_name("GUILD_HALL_NODE", "main")
# A member whose manifest names labels runs only on a node that has all of them.
GUILD_HALL_NODE_LABELS = env_labels("GUILD_HALL_NODE_LABELS")
# Where other nodes reach the gateway of this one, and the files with its certificate and with those it trusts.
GUILD_HALL_NODE_URL = env_node_url("GUILD_HALL_NODE_URL")
GUILD_HALL_NODE_CERTIFICATE = env_file("GUILD_HALL_NODE_CERTIFICATE", required=GUILD_HALL_NODE_URL.startswith("https:"))
if GUILD_HALL_NODE_CERTIFICATE is not None and not GUILD_HALL_NODE_URL.startswith("https:"):
    raise ImproperlyConfigured("GUILD_HALL_NODE_CERTIFICATE: it has no use; give GUILD_HALL_NODE_URL with https://.")
GUILD_HALL_NODE_CA = env_file("GUILD_HALL_NODE_CA")
# Calls that may run at the same time on this node. Threads are started when needed.
GUILD_HALL_CONCURRENCY = env_int("GUILD_HALL_CONCURRENCY", 256, 1, 4096)
# Members that may be starting at the same time.
GUILD_HALL_START_CONCURRENCY = env_int("GUILD_HALL_START_CONCURRENCY", 2 * (os.cpu_count() or 1), 1, 1024)
# Other machines that members' urls may call without TLS.
GUILD_HALL_PLAIN_HTTP_HOSTS = env_hosts("GUILD_HALL_PLAIN_HTTP_HOSTS")
# Where people look servers up before they propose one. Without it, nothing is looked up.
GUILD_HALL_REGISTRY_URL = env_web_url("GUILD_HALL_REGISTRY_URL", "https://registry.example.com")
# The limits of a token that has no other limits. 0 calls a minute means no limit.
GUILD_HALL_CALLS_PER_MINUTE = env_int("GUILD_HALL_CALLS_PER_MINUTE", 6000, 0, 1_000_000)
GUILD_HALL_MAX_IN_FLIGHT = env_int("GUILD_HALL_MAX_IN_FLIGHT", 64, 1, 4096)
GUILD_HALL_MAX_RESULT_BYTES = env_int("GUILD_HALL_MAX_RESULT_BYTES", 4_000_000, 1_000, 100_000_000)
# For members whose manifest does not say it: record changes of tools, or hold changed tools until an approval.
GUILD_HALL_CONTRACTS = env_choice("GUILD_HALL_CONTRACTS", ("record", "hold"))
# So much is stored of the arguments and results of a call through the gateway. 0 stores nothing.
GUILD_HALL_RECORD_BYTES = env_int("GUILD_HALL_RECORD_BYTES", 4096, 0, 1_000_000)
GUILD_HALL_KEEP_CALLS_DAYS = env_int("GUILD_HALL_KEEP_CALLS_DAYS", 30, 1, 3650)
# Entries of the audit log. The database refuses to delete them earlier than the least value.
GUILD_HALL_KEEP_AUDIT_DAYS = env_int("GUILD_HALL_KEEP_AUDIT_DAYS", 365, 30, 3650)
GUILD_HALL_KEEP_CALLS = env_int("GUILD_HALL_KEEP_CALLS", 100_000, 100, 100_000_000)
# How many agents may run at the same time (about 250 MB each), and for how many seconds.
GUILD_HALL_AGENT_CONCURRENCY = env_int("GUILD_HALL_AGENT_CONCURRENCY", 4, 1, 64)
GUILD_HALL_AGENT_TIMEOUT = env_int("GUILD_HALL_AGENT_TIMEOUT", 600, 10, 86_400)
# 1 puts the hall in a pid namespace, which the kernel ends as a whole. See mcp_runtime/runtime/pid_namespace.py.
GUILD_HALL_PID_NAMESPACE = env_int("GUILD_HALL_PID_NAMESPACE", 0, 0, 1)
# The processes of the web, and the threads of each.
GUILD_HALL_WEB_WORKERS = env_int("GUILD_HALL_WEB_WORKERS", 1, 1, 64)
GUILD_HALL_WEB_THREADS = env_int("GUILD_HALL_WEB_THREADS", 64, 2, 256)
# The file with the keys that encrypt secrets of members. It is the same on all nodes of the hall.
GUILD_HALL_SECRETS_KEY_FILE = env_path("GUILD_HALL_SECRETS_KEY_FILE", GUILD_HALL_DATA_DIR / "secrets-key")
# The folder with files to which manifests may refer, besides those in the member's own folder. None if there is none.
GUILD_HALL_SECRET_FILES_DIR = env_folder("GUILD_HALL_SECRET_FILES_DIR")
# The broker. Empty if there is none.
BROKER_URL = env_url("CELERY_BROKER_URL", "", ("redis", "rediss", "unix", "amqp", "amqps")) or env_url(
    "REDIS_URL", "", ("redis", "rediss", "unix")
)

# Django -----------------------------------------------------------------------------------------------------------

DEBUG = False
# The file with the secret key, which is the same on all nodes of the hall.
GUILD_HALL_SECRET_KEY_FILE = env_path("GUILD_HALL_SECRET_KEY_FILE", GUILD_HALL_DATA_DIR / "secret-key")
_is_own_file = os.environ.get("GUILD_HALL_SECRET_KEY_FILE", "").strip() == ""
SECRET_KEY = (secret_key_in if _is_own_file else existing_secret_key)(GUILD_HALL_SECRET_KEY_FILE)
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", *env_hosts("GUILD_HALL_ALLOWED_HOSTS")]
if GUILD_HALL_HOST not in ("0.0.0.0", "::"):  # noqa: S104 - a comparison, not a bind here
    ALLOWED_HOSTS.append(f"[{GUILD_HALL_HOST}]" if ":" in GUILD_HALL_HOST else GUILD_HALL_HOST)
# Origins of a reverse proxy, e.g. https://hall.example.com. A page from another origin gets 403.
CSRF_TRUSTED_ORIGINS = env_origins("GUILD_HALL_TRUSTED_ORIGINS")
ROOT_URLCONF = "guildhall.urls"
WSGI_APPLICATION = "guildhall.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-us"
STATIC_URL = "static/"
STATIC_ROOT = GUILD_HALL_DATA_DIR / "static"
# Static files are in the data folder.
FILE_UPLOAD_PERMISSIONS = 0o600
FILE_UPLOAD_DIRECTORY_PERMISSIONS = 0o700
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "guildhall.static_files.CompressedOnceStorage"},
}
LOGIN_URL = "admin:login"
X_FRAME_OPTIONS = "DENY"
# Not in a cookie. A message may contain a new token, and browsers send a cookie to all ports of a machine.
MESSAGE_STORAGE = "django.contrib.messages.storage.session.SessionStorage"
# Nothing inline, nothing from other sites. The format is that of Django 6, whose own middleware can replace ours.
SECURE_CSP = {
    "default-src": ["'none'"],
    "script-src": ["'self'"],
    "style-src": ["'self'"],
    "img-src": ["'self'", "data:"],
    "media-src": ["'self'", "data:"],
    "connect-src": ["'self'"],
    "font-src": ["'self'"],
    "form-action": ["'self'"],
    "frame-ancestors": ["'none'"],
    "base-uri": ["'none'"],
}
# Cookies are shared by all ports. With equal names, two halls on one machine would log out each other's users.
SESSION_COOKIE_NAME = f"guildhall_{GUILD_HALL_PORT}_session"
CSRF_COOKIE_NAME = f"guildhall_{GUILD_HALL_PORT}_csrf"

# The runtime does not need these, and importing them takes longer than everything else. It leaves them out.
APPS_OF_THE_WEB = [
    "guildhall.apps.AdminConfig",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
]
INSTALLED_APPS = ["roster", "django.contrib.auth", "django.contrib.contenttypes", *APPS_OF_THE_WEB]

MIDDLEWARE = [
    "roster.middleware.OriginMiddleware",
    "roster.middleware.ContentSecurityPolicyMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "roster.middleware.PageCompressionMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "roster.middleware.OwnerMiddleware",
    "roster.middleware.ActorMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "roster.middleware.DatabaseTroubleMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

# Database ---------------------------------------------------------------------------------------------------------

DATABASE_URL = env_url(
    "DATABASE_URL", f"sqlite:///{GUILD_HALL_DATA_DIR / 'guildhall.sqlite3'}", ("postgres", "postgresql", "sqlite")
)
DATABASES = {"default": dj_database_url.parse(DATABASE_URL)}
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    DATABASES["default"]["CONN_MAX_AGE"] = None
    DATABASES["default"]["OPTIONS"] = {
        # Take the write lock at BEGIN, which waits for it. A read that becomes a write would fail as "locked".
        "transaction_mode": "IMMEDIATE",
        "timeout": 30,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    }
    # REST framework imports it if it can. It imports psycopg, which is 11 MB that nobody uses.
    sys.modules.setdefault("django.contrib.postgres", None)  # type: ignore[arg-type]
    # A file for tests too, because threads and processes cannot share an in-memory database.
    DATABASES["default"]["TEST"] = {"NAME": str(GUILD_HALL_DATA_DIR / "test.sqlite3")}
else:
    # Hundreds of threads share a few connections. Each takes one for a unit of work, and gives it back.
    DATABASES["default"]["CONN_MAX_AGE"] = 0
    DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
    # `reconnect_timeout` is 300 s by default. For that time a failed attempt is repeated, at longer and longer
    # intervals, and prevents others. After a short outage of the database nobody would be served for half a minute.
    pool = {"min_size": 2, "max_size": 16, "timeout": 5, "reconnect_timeout": 1}
    DATABASES["default"].setdefault("OPTIONS", {})["pool"] = pool

# Files that a manifest may not send to a server, wherever the member's folder is.
PRIVATE_PLACES = [GUILD_HALL_DATA_DIR, GUILD_HALL_SECRET_KEY_FILE, GUILD_HALL_SECRETS_KEY_FILE, ENV_FILE]
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    PRIVATE_PLACES += [Path(f"{DATABASES['default']['NAME']}{suffix}") for suffix in ("", "-wal", "-shm")]
# Files with logins: of the agents, and of the PostgreSQL client.
PRIVATE_PLACES.append(Path(os.environ.get("CLAUDE_CONFIG_DIR") or os.path.expanduser("~/.claude"), ".credentials.json"))
PRIVATE_PLACES.append(Path(os.environ.get("PGPASSFILE") or os.path.expanduser("~/.pgpass")))
PRIVATE_PLACES += [GUILD_HALL_NODE_CERTIFICATE] if GUILD_HALL_NODE_CERTIFICATE is not None else []
# Ranges of TCP ports where a member in a sandbox cannot connect to: those of all members, the hall and its services.
DEFAULT_PORTS = {"redis": 6379, "rediss": 6379, "amqp": 5672, "amqps": 5671}
_ports = {
    *(GUILD_HALL_PORT, GUILD_HALL_GATEWAY_PORT, urlsplit(GUILD_HALL_NODE_URL).port),
    urlsplit(BROKER_URL).port or DEFAULT_PORTS.get(urlsplit(BROKER_URL).scheme),
    None if "sqlite" in DATABASES["default"]["ENGINE"] else DATABASES["default"].get("PORT") or 5432,
}
PRIVATE_PORTS = [MANAGED_PORTS, *sorted((int(port), int(port)) for port in _ports if port)]

# Celery: a queue of notifications for each node. A message carries nothing and may be lost; the rows say it all. ---

CELERY_APP = "guildhall.celery.app"
# Do not wait for a notification that cannot be sent at once. The runtime looks at the rows every second.
BROKER_TIMEOUT = 0.5
# Without a broker the worker still needs a transport. This one carries nothing.
CELERY_BROKER_URL = BROKER_URL or "memory://localhost"
_TRANSPORT_OPTIONS: dict[str, dict[str, float]] = {
    "memory": {},
    "amqp": {"write_timeout": BROKER_TIMEOUT, "max_retries": 0},
    "redis": {"socket_connect_timeout": BROKER_TIMEOUT, "socket_timeout": BROKER_TIMEOUT, "max_retries": 0},
}
CELERY_BROKER_TRANSPORT_OPTIONS = _TRANSPORT_OPTIONS[
    "amqp" if BROKER_URL.startswith("amqp") else "redis" if BROKER_URL else "memory"
]
CELERY_BROKER_CONNECTION_TIMEOUT = BROKER_TIMEOUT
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_TASK_IGNORE_RESULT = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_REDIRECT_STDOUTS = False
CELERY_IMPORTS = ["mcp_runtime.runtime.tasks"]

# REST framework imports it if it is installed, for pages that the hall does not have. It takes 1.6 MB.
sys.modules.setdefault("pygments", None)  # type: ignore[arg-type]

# REST -------------------------------------------------------------------------------------------------------------

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "roster.api.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "roster.api.errors.exception_handler",
    "DEFAULT_PAGINATION_CLASS": None,
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Guild Hall",
    "DESCRIPTION": "The roster of MCP servers, and durable calls to their tools.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
}

# Logs: one readable stream. The second column is the part of the hall, or the member. -----------------------------

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"()": "roster.masked_log.MaskingFormatter"}},
    "filters": {"damage": {"()": "mcp_runtime.rows.database.DamageFilter"}},
    "handlers": {
        "console": {
            "class": "mcp_runtime.system.console.ConsoleHandler",
            "formatter": "line",
            "filters": ["damage"],
            "stream": "ext://sys.stderr",
        }
    },
    "root": {"handlers": ["console"], "level": "WARNING"},
    "loggers": {
        "guildhall": {"level": "INFO"},
        "django.request": {"level": "ERROR"},
        "celery": {"level": "WARNING"},
    },
}
