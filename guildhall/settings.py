"""All settings. Each comes from the environment, or has a default that works on any machine.

docs/settings.md has the table. A wrong value stops the start, with a hint. CONTRIBUTING.md names the other places of a
new setting.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

from guildhall import single_sign_on
from guildhall.data_folder import existing_secret_key, private_folder, private_umask, secret_key_in
from guildhall.environment import (
    MANAGED_PORTS,
    env_choice,
    env_file,
    env_folder,
    env_hosts,
    env_int,
    env_labels,
    env_name,
    env_node_url,
    env_origins,
    env_path,
    env_port_range,
    env_url,
    env_web_url,
    read_env_file,
)

BASE_DIR = Path(__file__).resolve().parent.parent

# The hall ---------------------------------------------------------------------------------------------------------

ENV_FILE = env_path("GUILD_HALL_ENV_FILE", BASE_DIR / ".env")
read_env_file(ENV_FILE)
GUILD_HALL_HOST = os.environ.get("GUILD_HALL_HOST", "").strip() or "127.0.0.1"
GUILD_HALL_PORT = env_int("GUILD_HALL_PORT", 8000, 1, 65535)
GUILD_HALL_GATEWAY_PORT = env_int("GUILD_HALL_GATEWAY_PORT", 8100, 1, 65535)
# Where people reach the web, for links that the hall gives out. Empty if that is its own host and port.
GUILD_HALL_WEB_URL = env_web_url("GUILD_HALL_WEB_URL", "https://hall.example.com")
# Where clients reach the gateway, for configurations and pages. Empty if that is its own host and port.
GUILD_HALL_GATEWAY_URL = env_web_url("GUILD_HALL_GATEWAY_URL", "https://gateway.example.com")
# 1 lets people sign clients in with a browser (docs/sign-in.md). 0 leaves tokens as the only way in for clients.
GUILD_HALL_SIGN_IN = env_int("GUILD_HALL_SIGN_IN", 1, 0, 1)
# 0 where the web reaches no internet. Clients then register, instead of naming a description that nobody can fetch.
GUILD_HALL_SIGN_IN_PUBLISHED = env_int("GUILD_HALL_SIGN_IN_PUBLISHED", 1, 0, 1)
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

# Single sign-on. Without an issuer there is none. ------------------------------------------------------------------

GUILD_HALL_OIDC_ISSUER = env_web_url("GUILD_HALL_OIDC_ISSUER", "https://login.example.com/realms/staff")
GUILD_HALL_OIDC_NAME = single_sign_on.env_label("GUILD_HALL_OIDC_NAME") or "single sign-on"
GUILD_HALL_OIDC_CLIENT_ID = single_sign_on.env_text("GUILD_HALL_OIDC_CLIENT_ID")
_secret_file, _secret = single_sign_on.env_secret_file("GUILD_HALL_OIDC_CLIENT_SECRET_FILE")
GUILD_HALL_OIDC_CLIENT_SECRET = single_sign_on.env_text("GUILD_HALL_OIDC_CLIENT_SECRET", _secret)
if _secret and _secret != GUILD_HALL_OIDC_CLIENT_SECRET:
    raise ImproperlyConfigured("GUILD_HALL_OIDC_CLIENT_SECRET: a file has another one; give only one of them.")
GUILD_HALL_OIDC_SCOPES = single_sign_on.env_scopes("GUILD_HALL_OIDC_SCOPES")
GUILD_HALL_OIDC_USERNAME_CLAIM = single_sign_on.env_claim("GUILD_HALL_OIDC_USERNAME_CLAIM", "preferred_username")
GUILD_HALL_OIDC_GROUPS_CLAIM = single_sign_on.env_claim("GUILD_HALL_OIDC_GROUPS_CLAIM", "groups")
# Who may log in, and which roles and groups of the hall they get for groups of the provider.
GUILD_HALL_OIDC_ALLOW = single_sign_on.env_allow("GUILD_HALL_OIDC_ALLOW")
GUILD_HALL_OIDC_GROUPS = single_sign_on.env_groups("GUILD_HALL_OIDC_GROUPS")
# 1 switches off logins with a password of the hall.
GUILD_HALL_OIDC_ONLY = env_int("GUILD_HALL_OIDC_ONLY", 0, 0, 1)
GUILD_HALL_OIDC_SESSION_HOURS = env_int("GUILD_HALL_OIDC_SESSION_HOURS", 12, 1, 720)
# Tokens of users of single sign-on give no access so long after the user's last login.
GUILD_HALL_OIDC_TOKEN_DAYS = env_int("GUILD_HALL_OIDC_TOKEN_DAYS", 30, 1, 3650)
if GUILD_HALL_OIDC_ISSUER and not (GUILD_HALL_OIDC_CLIENT_ID and GUILD_HALL_OIDC_CLIENT_SECRET):
    raise ImproperlyConfigured(
        "GUILD_HALL_OIDC_ISSUER: the hall must be a client of it; give GUILD_HALL_OIDC_CLIENT_ID and "
        "GUILD_HALL_OIDC_CLIENT_SECRET too."
    )
if GUILD_HALL_OIDC_ISSUER and not GUILD_HALL_OIDC_ALLOW:
    raise ImproperlyConfigured(
        "GUILD_HALL_OIDC_ISSUER: nobody of it could log in; give GUILD_HALL_OIDC_ALLOW too, e.g. @example.com."
    )

# An outside authorization server of the gateway, in place of the hall itself (docs/outside-issuer.md). ---------------

GUILD_HALL_SIGN_IN_ISSUER = single_sign_on.env_issuer("GUILD_HALL_SIGN_IN_ISSUER")
# The audience of its access tokens. If it is empty, they name an address of the gateway.
GUILD_HALL_SIGN_IN_AUDIENCE = single_sign_on.env_text("GUILD_HALL_SIGN_IN_AUDIENCE")
# Where its keys are. If it is empty, its discovery document says so.
GUILD_HALL_SIGN_IN_JWKS_URL = env_web_url("GUILD_HALL_SIGN_IN_JWKS_URL", "https://login.example.com/keys")
# What its scopes give, and the claim that says who the person is.
GUILD_HALL_SIGN_IN_SCOPES = single_sign_on.env_scopes_of_issuer("GUILD_HALL_SIGN_IN_SCOPES")
GUILD_HALL_SIGN_IN_SUBJECT_CLAIM = single_sign_on.env_claim("GUILD_HALL_SIGN_IN_SUBJECT_CLAIM", "sub")
if GUILD_HALL_SIGN_IN_ISSUER and not GUILD_HALL_SIGN_IN:
    raise ImproperlyConfigured("GUILD_HALL_SIGN_IN_ISSUER: it has no use while GUILD_HALL_SIGN_IN is 0; give only one.")
if GUILD_HALL_SIGN_IN_ISSUER and GUILD_HALL_SIGN_IN_ISSUER.rstrip("/") != GUILD_HALL_OIDC_ISSUER:
    raise ImproperlyConfigured(
        "GUILD_HALL_SIGN_IN_ISSUER: the hall knows the people of an issuer by single sign-on; give the same issuer as "
        "GUILD_HALL_OIDC_ISSUER."
    )
_of_issuer = ("AUDIENCE", "JWKS_URL", "SCOPES", "SUBJECT_CLAIM")
_without_issuer = [part for part in _of_issuer if os.environ.get(f"GUILD_HALL_SIGN_IN_{part}", "").strip()]
if _without_issuer and not GUILD_HALL_SIGN_IN_ISSUER:
    raise ImproperlyConfigured(
        f"GUILD_HALL_SIGN_IN_{_without_issuer[0]}: it is about tokens of another issuer than the hall; give "
        "GUILD_HALL_SIGN_IN_ISSUER too."
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
# A form has at most one file, a bundle. The web's own server limits its size (guildhall/uploads.py).
FILE_UPLOAD_HANDLERS = ["roster.uploads.UnnamedFileHandler"]
DATA_UPLOAD_MAX_NUMBER_FILES = 1
# Static files are in the data folder.
FILE_UPLOAD_PERMISSIONS = 0o600
FILE_UPLOAD_DIRECTORY_PERMISSIONS = 0o700
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "guildhall.static_files.CompressedOnceStorage"},
}
LOGIN_URL = "admin:login"
# A session belongs to one of these, and ends when it is not in the list any more.
AUTHENTICATION_BACKENDS = [
    "roster.login_backends.LinkBackend" if GUILD_HALL_OIDC_ONLY else "django.contrib.auth.backends.ModelBackend"
]
if GUILD_HALL_OIDC_ISSUER:
    AUTHENTICATION_BACKENDS.append("roster.login_backends.ProviderBackend")
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
SESSION_ENGINE = "roster.sessions"
SESSION_COOKIE_NAME = f"guildhall_{GUILD_HALL_PORT}_session"
CSRF_COOKIE_NAME = f"guildhall_{GUILD_HALL_PORT}_csrf"

# The runtime does not need these, and importing them takes longer than everything else. It leaves them out.
APPS_OF_THE_WEB = [
    "guildhall.apps.AdminConfig",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "guildhall.apps.OAuthConfig",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
]
INSTALLED_APPS = ["roster", "django.contrib.auth", "django.contrib.contenttypes", *APPS_OF_THE_WEB]

CSRF_FAILURE_VIEW = "roster.error_pages.stale"

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
        # secure_delete: deleted texts are overwritten, and not only freed.
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA secure_delete=ON;",
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
PRIVATE_PLACES += [file for file in (GUILD_HALL_NODE_CERTIFICATE, _secret_file) if file is not None]
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
    "POSTPROCESSING_HOOKS": ["drf_spectacular.hooks.postprocess_schema_enums", "roster.api.summaries.add"],
}

# Sign-in of clients: OAuth 2.1 as the gateway's authorization server (roster/sign_in). ----------------------------

OAUTH2_PROVIDER = {
    # Only these grants exist: an authorization code with PKCE, and the refresh token that follows from it.
    "OAUTH2_SERVER_CLASS": "oauthlib.oauth2.WebApplicationServer",
    "OAUTH2_BACKEND_CLASS": "roster.sign_in.protocol.HallCore",
    "OAUTH2_VALIDATOR_CLASS": "roster.sign_in.validator.HallValidator",
    "ACCESS_TOKEN_GENERATOR": "roster.sign_in.protocol.new_access_token",
    "REFRESH_TOKEN_GENERATOR": "roster.sign_in.protocol.new_refresh_token",
    "SCOPES": {"mcp": "Use the gateway"},
    "AUTHORIZATION_CODE_EXPIRE_SECONDS": 60,
    "ACCESS_TOKEN_EXPIRE_SECONDS": 3600,
    # After the end of the last access token. The grant itself ends when the person said at the consent.
    "REFRESH_TOKEN_EXPIRE_SECONDS": 30 * 86_400,
    "REFRESH_TOKEN_REUSE_PROTECTION": True,
    # Programs of one person share their tokens, and refresh them at the same moment. They get the same answer.
    "REFRESH_TOKEN_GRACE_PERIOD_SECONDS": 30,
    "ROTATE_REFRESH_TOKEN": True,
    "PKCE_REQUIRED": True,
    # `http` only for redirects to programs on the machine of the browser (roster/sign_in/redirects.py).
    "ALLOWED_REDIRECT_URI_SCHEMES": ["https", "http", "cursor", "vscode", "vscode-insiders", "windsurf"],
    "ALLOW_LOCALHOST_LOOPBACK": True,
    "DCR_ENABLED": False,  # roster/sign_in/registration.py registers clients, within bounds
    "CIMD_ENABLED": bool(GUILD_HALL_SIGN_IN_PUBLISHED),
    "CIMD_METADATA_FETCHER": "roster.sign_in.published.BoundedFetcher",
    "CIMD_REGISTRATION_PERMISSION_CLASSES": ["roster.sign_in.published.OnlyAtConsent"],
    **{
        f"COMPLIANT_BCP_RFC9700_{gate}": True
        for gate in (
            *("IMPLICIT_GRANT", "PASSWORD_GRANT", "PKCE_METHOD", "PKCE_REQUIRED", "ACCESS_TOKEN_TRANSPORT"),
            *("AUTHZ_RESPONSE_ISS", "TOKEN_STORAGE", "REFRESH_TOKEN", "REDIRECT_URI_MATCHING"),
        )
    },
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
