"""The routes of the example, and views that the tests have for themselves."""

from __future__ import annotations

import project.urls
from django.urls import path

from tests.contrib.django import views

urlpatterns = [
    *project.urls.urlpatterns,
    path("steps/", views.Steps.as_view()),
    path("asteps/", views.AsyncSteps.as_view()),
    path("plain/", views.plain),
    path("aplain/", views.aplain),
    path("handing/", views.handing),
    path("stream/", views.stream),
    path("block/", views.Block.as_view()),
    path("throttled/", views.Throttled.as_view()),
    path("rated/", views.Rated.as_view()),
]
