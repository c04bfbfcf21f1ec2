"""Authentication by an organisation's key: `Authorization: Bearer KEY`."""

from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed

from .models import ApiKey


class KeyUser:
    """Who sends a request: an organisation."""

    is_authenticated = True

    def __init__(self, organization) -> None:
        self.organization = organization


class KeyAuthentication(BaseAuthentication):
    def authenticate(self, request):
        kind, _, key = request.headers.get("Authorization", "").partition(" ")
        if kind != "Bearer":
            return None
        found = ApiKey.objects.select_related("organization").filter(key=key).first()
        if found is None:
            raise AuthenticationFailed("This key is not known.")
        return KeyUser(found.organization), None

    def authenticate_header(self, request) -> str:
        return "Bearer"
