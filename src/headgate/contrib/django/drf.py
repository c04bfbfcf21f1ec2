"""Django REST framework: a mixin for views, throttles on a gate, and the errors as `APIException`s."""

from __future__ import annotations

from inspect import isawaitable

from asgiref.sync import async_to_sync
from rest_framework.exceptions import APIException, ErrorDetail
from rest_framework.settings import api_settings
from rest_framework.throttling import BaseThrottle
from rest_framework.views import exception_handler

from headgate import Denied, Gate, InvalidInput
from headgate.http.keys import key_value

from .errors import LimiterUnavailable, LimitReached, standard_body
from .slots import Slot, slot
from .tenants import Tenants, tenants
from .views import known, organization_of, served, until_streamed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any, ClassVar

    from headgate import Permit

    from .errors import TenantError


def _for_handler(error: TenantError) -> Any:
    """`detail` for the project's exception handler.

    drf-standardized-errors, or a handler of the project's own, gives it its form. DRF's own handler sends a dict as it is.
    """
    if api_settings.EXCEPTION_HANDLER is exception_handler:
        return standard_body(str(error), error.code, error.kind)
    return ErrorDetail(error.detail, error.code)


class ApiLimitReached(LimitReached, APIException):
    """`LimitReached` where DRF is used: its handler answers it, with `Retry-After`."""

    default_code = "error"

    def __init__(self, refused: Any) -> None:
        LimitReached.__init__(self, refused)
        self._text = str(self.detail)
        self.detail = _for_handler(self)

    def __str__(self) -> str:
        return self._text


class ApiLimiterUnavailable(LimiterUnavailable, APIException):
    """`LimiterUnavailable` where DRF is used."""

    default_code = "error"

    def __init__(self, code: str) -> None:
        LimiterUnavailable.__init__(self, code)
        self._text = str(self.detail)
        self.detail = _for_handler(self)

    def __str__(self) -> str:
        return self._text


class SlotMixin:
    """For an `APIView`: a request takes a slot after authentication, permissions and validation, before its handler.

    `self.slot` is released when the view ends, unless the handler hands it over. A 400, 401, 403, 404 or 405 takes none.
    Under adrf (async views) the three methods below may be async; slots are taken and released beside the event loop.
    """

    #: The methods that need a slot; None for all that the view has.
    slot_methods: ClassVar[tuple[str, ...] | None] = None
    #: A serializer that `request.data` has to pass first; its result is `self.validated_data`.
    slot_serializer_class: Any = None
    #: Other tenants than those of the settings.
    slot_tenants: Tenants | None = None
    slot: Slot | None = None
    #: The request has been answered, or its client has gone: what is taken now is nobody's.
    _answered = False

    def get_organization(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """The organisation of a request; None is a 403."""
        return organization_of(request, self.slot_tenants or tenants(), *args, **kwargs)

    def get_execution_id(self, request: Any) -> Any:
        """The id of a run that another process finishes; None for a slot that ends with the request."""
        return None

    def validate_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        """Raise here what a wrong request is answered with. The default asks `slot_serializer_class`."""
        if self.slot_serializer_class is not None:
            serializer = self.slot_serializer_class(data=request.data, context={"request": request, "view": self})
            serializer.is_valid(raise_exception=True)
            self.validated_data = serializer.validated_data

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)  # type: ignore[misc]
        wanted = self.slot_methods is None or request.method in self.slot_methods
        if wanted and request.method != "OPTIONS" and hasattr(self, request.method.lower()):
            validate: Callable[..., Any] = self.validate_request
            _now(validate(request, *args, **kwargs))
            who = known(_now(self.get_organization(request, *args, **kwargs)))
            self.slot = slot(who, _now(self.get_execution_id(request)), tenants=self.slot_tenants).take()
            if self._answered:  # under adrf this is another thread, and the task that waited for it was cancelled
                self.slot.release("error")

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        answer: Callable[..., Any] = super().dispatch  # type: ignore[misc]
        try:
            response = answer(request, *args, **kwargs)
        except BaseException:
            if self.slot is not None:
                self.slot.release("error")
            raise
        if isawaitable(response):
            return self._awaited(response)
        return response if self.slot is None else served(self.slot, lambda: response)

    async def _awaited(self, answer: Awaitable[Any]) -> Any:
        """The response of an async view. A client that goes away cancels it, at whichever step it is."""
        try:
            response = await answer
        except BaseException:
            self._answered = True
            if self.slot is not None:
                await self.slot.arelease("error")
            raise
        self._answered = True
        if self.slot is None:
            return response
        if self.slot.held and getattr(response, "streaming", False):
            return until_streamed(response, self.slot)
        await self.slot.arelease()
        return response


def _now(value: Any) -> Any:
    """The value of a method that may be async. Under adrf `initial` runs in a thread beside the event loop."""
    return async_to_sync(_value)(value) if isawaitable(value) else value


async def _value(value: Awaitable[Any]) -> Any:
    return await value


class GateThrottle(BaseThrottle):
    """`throttle_classes = [PerUser]` on a gate: exact over all processes, where DRF's own throttles race.

    class PerUser(GateThrottle):
        gate = Gate("api", [Window(60, per="1m", by="user")], store="redis://…")

    A limit of concurrency holds its slot until the view has answered.
    """

    gate: ClassVar[Gate | None] = None
    _wait: float | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.gate is not None:  # requests are counted here, so there is no way to an upstream to allow for
            cls.gate = cls.gate.at_boundary()

    def get_gate(self) -> Gate:
        """The gate that is asked."""
        if self.gate is None:
            raise InvalidInput(f"{type(self).__name__} has no gate: give it one, gate = Gate(…)")
        return self.gate

    def get_key(self, request: Any, view: Any) -> dict[str, str] | None:
        """The key of a request: its user, else its address, for a gate by one key; override it for others."""
        keys = self.get_gate().policy.keys
        if not keys:
            return None
        user = getattr(request, "user", None)
        who = user.pk if user is not None and getattr(user, "is_authenticated", False) else self.get_ident(request)
        return dict.fromkeys(keys, key_value(str(who)))

    def allow_request(self, request: Any, view: Any) -> bool:
        gate = self.get_gate()
        try:
            permit = gate.acquire(key=self.get_key(request, view), timeout=0)
        except Denied as denied:
            self._wait = denied.retry_after
            return False
        if any(limit.leased for limit in gate.policy.limits):
            release_with(view, permit)
        return True

    def wait(self) -> float | None:
        return self._wait


class TenantThrottle(BaseThrottle):
    """`throttle_classes = [TenantThrottle]`: the limits of the settings, without the mixin. The answer is the same 429."""

    def allow_request(self, request: Any, view: Any) -> bool:
        owner = tenants()
        who = known(organization_of(request, owner, *view.args, **view.kwargs))
        held = slot(who).take()
        if owner.holds_slots and not held.shadowed:
            release_with(view, held)
        return True


def release_with(view: Any, held: Permit | Slot) -> None:
    """Release what a throttle took when its view has answered. DRF tells throttles nothing of that."""
    finalize, handle = view.finalize_response, view.handle_exception

    def finalized(*args: Any, **kwargs: Any) -> Any:
        try:
            return finalize(*args, **kwargs)
        finally:
            held.release()

    def handled(error: Exception) -> Any:
        try:
            return handle(error)
        except BaseException:  # which DRF leaves to Django, so that nothing is finalized
            held.release("error")
            raise

    view.finalize_response, view.handle_exception = finalized, handled
