"""The example's tables."""

import time
import uuid

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.HEADGATE_ORGANIZATION_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="ApiKey",
            fields=[
                ("key", models.CharField(max_length=64, primary_key=True, serialize=False)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to=settings.HEADGATE_ORGANIZATION_MODEL
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="WorkflowExecution",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                ("workflow", models.CharField(max_length=100)),
                ("source", models.CharField(max_length=10)),
                ("status", models.CharField(db_index=True, default="queued", max_length=10)),
                ("asked_at", models.FloatField(null=True)),
                ("accepted_at", models.FloatField(default=time.monotonic)),
                ("ended_at", models.FloatField(null=True)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to=settings.HEADGATE_ORGANIZATION_MODEL
                    ),
                ),
            ],
        ),
    ]
