"""Settings of the example: what a project needs for Headgate is at the end."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
#: Where the databases are; the demo and the tests put them elsewhere.
DATA = Path(os.environ.get("EXAMPLE_DATA", BASE_DIR))

SECRET_KEY = "an example, on loopback only"
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "testserver"]
ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
ASGI_APPLICATION = "project.asgi.application"
USE_TZ = True
TIME_ZONE = "UTC"
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "rest_framework",
    "deployments",
    "headgate.contrib.django",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
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

if os.environ.get("EXAMPLE_POSTGRES"):  # host:port:user
    host, port, user = os.environ["EXAMPLE_POSTGRES"].split(":")
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "postgres",
            "HOST": host,
            "PORT": port,
            "USER": user,
        }
    }
else:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": DATA / "db.sqlite3",
            "OPTIONS": {"timeout": 60},
            # The tests of the project write to a file too: processes share it.
            "TEST": {"NAME": DATA / "test.sqlite3"},
        }
    }

REST_FRAMEWORK = {
    "EXCEPTION_HANDLER": "drf_standardized_errors.handler.exception_handler",
    "DEFAULT_AUTHENTICATION_CLASSES": ["deployments.keys.KeyAuthentication"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "UNAUTHENTICATED_USER": None,
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    "loggers": {"headgate": {"handlers": ["stderr"], "level": os.environ.get("EXAMPLE_LOG", "WARNING")}},
}

# --- Headgate: everything below has a default, and could be left out ------------------------------------------------

# `HEADGATE_STORE` in the environment names Redis for a fleet of several machines.
if "HEADGATE_STORE" not in os.environ:
    HEADGATE_STORE = f"sqlite:///{DATA / 'headgate.db'}"

HEADGATE_TENANTS = {"lease": os.environ.get("EXAMPLE_LEASE", "10m")}
