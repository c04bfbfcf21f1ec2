"""The organisation model, where the project has none of its own, and the limits of organisations."""

import uuid

import django.core.validators
import django.db.models.deletion
from django.db import migrations, models

import headgate.contrib.django.models
from headgate.contrib.django import conf


class Migration(migrations.Migration):
    initial = True

    dependencies = [migrations.swappable_dependency(conf.organization_model_name())]

    operations = [
        migrations.CreateModel(
            name="Organization",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("organization_id", models.CharField(max_length=200, unique=True)),
                ("name", models.CharField(db_index=True, max_length=200)),
            ],
            options={"swappable": conf.ORGANIZATION_MODEL},
        ),
        migrations.CreateModel(
            name="OrganizationRateLimit",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                (
                    "concurrent_request_limit",
                    models.PositiveIntegerField(
                        default=headgate.contrib.django.models.system_default,
                        help_text="Concurrent requests, at least 1. Holds from the next request on, in every process.",
                        validators=[django.core.validators.MinValueValidator(1)],
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("modified_at", models.DateTimeField(auto_now=True)),
                (
                    "organization",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="headgate_rate_limit",
                        to=conf.organization_model_name(),
                    ),
                ),
            ],
            options={"verbose_name": "organization rate limit", "ordering": ("created_at", "id")},
        ),
    ]
