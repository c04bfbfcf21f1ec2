"""The example's app."""

from django.apps import AppConfig
from django.db.backends.signals import connection_created


class DeploymentsConfig(AppConfig):
    name = "deployments"

    def ready(self) -> None:
        connection_created.connect(write_ahead, dispatch_uid="deployments")


def write_ahead(connection, **kwargs) -> None:
    """SQLite with many processes: readers do not wait for the writer."""
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA journal_mode=WAL")
            cursor.execute("PRAGMA synchronous=OFF")
