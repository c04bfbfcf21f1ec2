"""The routes of the example."""

from deployments import views
from django.contrib import admin
from django.urls import path

urlpatterns = [
    path("deployment/api/<str:org>/<str:name>/", views.DeploymentExecution.as_view()),
    path("workflow/<str:org>/<str:name>/run/", views.RunInBrowser.as_view()),
    path("executions/<uuid:id>/", views.ExecutionStatus.as_view()),
    path("admin/", admin.site.urls),
]
