"""Guarding views without Django REST framework: a decorator for sync and async views, and a middleware."""

from __future__ import annotations

from functools import wraps
from inspect import isawaitable

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.exceptions import PermissionDenied
from django.utils.module_loading import import_string

from .errors import TenantError
from .slots import Slot, slot
from .tenants import Tenants
from .tenants import tenants as from_settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from typing import Any


def organization_of(request: Any, owner: Tenants, *args: Any, **kwargs: Any) -> Any:
    """The organisation of a request: by the setting, else `request.organization`, else that of its user."""
    find = owner.conf.organization
    if find is not None:
        return (import_string(find) if isinstance(find, str) else find)(request, *args, **kwargs)
    found = getattr(request, "organization", None)
    return found if found is not None else getattr(getattr(request, "user", None), "organization", None)


def known(organization: Any) -> Any:
    """The organisation, or 403: who belongs to none takes no slot."""
    if organization is None:
        raise PermissionDenied("this request belongs to no organization")
    return organization


def limited(
    view: Callable[..., Any] | None = None,
    *,
    organization: Callable[..., Any] | None = None,
    validate: Callable[..., Any] | None = None,
    execution_id: Callable[..., Any] | None = None,
    methods: tuple[str, ...] | None = None,
    tenants: Tenants | None = None,
) -> Any:
    """A decorator: a request takes a slot for the time of the view, sync or async, and is answered with 429 without one.

    First `validate(request, …)` (an answer that it returns is sent, and takes no slot), then `organization(request, …)`
    (default: the setting's; None is a 403), then the slot, which the view finds as `request.slot`. `execution_id(request,
    …)` gives the id of a run that another process finishes. `methods` are those that need a slot, by default all. In async
    views the functions may be async. A response that streams holds its slot until it has ended.
    """
    if view is None:
        return lambda view: limited(
            view, organization=organization, validate=validate, execution_id=execution_id, methods=methods,
            tenants=tenants,
        )  # fmt: skip
    steps = _Steps(organization, methods, tenants)
    if iscoroutinefunction(view):

        @wraps(view)
        async def acall(request: Any, *args: Any, **kwargs: Any) -> Any:
            if not steps.concerns(request):
                return await view(request, *args, **kwargs)
            if validate is not None and (answer := await _value(validate(request, *args, **kwargs))) is not None:
                return answer
            who = known(await _value(steps.who(request, *args, **kwargs)))
            id = None if execution_id is None else await _value(execution_id(request, *args, **kwargs))
            try:
                held = await slot(who, id, tenants=tenants).atake()
            except TenantError as error:
                return error.response()
            request.slot = held
            try:
                response = await view(request, *args, **kwargs)
            except BaseException:
                await held.arelease("error")
                raise
            if held.held and getattr(response, "streaming", False):
                return until_streamed(response, held)
            await held.arelease()
            return response

        return markcoroutinefunction(acall)

    @wraps(view)
    def call(request: Any, *args: Any, **kwargs: Any) -> Any:
        if not steps.concerns(request):
            return view(request, *args, **kwargs)
        if validate is not None and (answer := validate(request, *args, **kwargs)) is not None:
            return answer
        who = known(steps.who(request, *args, **kwargs))
        id = None if execution_id is None else execution_id(request, *args, **kwargs)
        try:
            held = slot(who, id, tenants=tenants).take()
        except TenantError as error:
            return error.response()
        request.slot = held
        return served(held, lambda: view(request, *args, **kwargs))

    return call


def served(held: Slot, answer: Callable[[], Any]) -> Any:
    """The response of a view that holds a slot. It is released with the view, or when the response has been streamed."""
    try:
        response = answer()
    except BaseException:
        held.release("error")
        raise
    if held.held and getattr(response, "streaming", False):
        return until_streamed(response, held)
    held.release()
    return response


async def _value(value: Any) -> Any:
    return await value if isawaitable(value) else value


class _Steps:
    """Which requests need a slot, and whose they are."""

    def __init__(self, organization: Any, methods: tuple[str, ...] | None, tenants: Tenants | None) -> None:
        self._organization, self._methods, self._tenants = organization, methods, tenants

    def concerns(self, request: Any) -> bool:
        return self._methods is None or request.method in self._methods

    def who(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        if self._organization is not None:
            return self._organization(request, *args, **kwargs)
        return organization_of(request, self._tenants or from_settings(), *args, **kwargs)


def until_streamed(response: Any, held: Slot) -> Any:
    """The same response, whose slot is released when it has been streamed, or when the client is gone."""
    content = response.streaming_content
    response.streaming_content = _AsyncStream(content, held) if response.is_async else _Stream(content, held)
    return response


class _Stream:
    """An iterator with a slot. Django closes it with the response, whether it was read to its end or not."""

    def __init__(self, content: Iterator[bytes], held: Slot) -> None:
        self._content, self._held = iter(content), held

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._content)
        except BaseException as end:
            self._held.release("ok" if isinstance(end, StopIteration) else "error")
            raise

    def close(self) -> None:
        self._held.release()


class _AsyncStream:
    """`_Stream` for asyncio."""

    def __init__(self, content: AsyncIterator[bytes], held: Slot) -> None:
        self._content, self._held = content, held

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._content)
        except BaseException as end:
            await self._held.arelease("ok" if isinstance(end, StopAsyncIteration) else "error")
            raise

    def close(self) -> None:
        """Closed by Django in a thread, where nothing can be awaited."""
        from asgiref.sync import async_to_sync

        if self._held.held:
            async_to_sync(self._held.arelease)()


class LimitMiddleware:
    """Turns a `LimitReached` that a plain view let go into its answer: for views that use `slot` without the decorator."""

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[..., Any]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: Any) -> Any:
        return self.get_response(request)

    def process_exception(self, request: Any, error: Exception) -> Any:
        return error.response() if isinstance(error, TenantError) else None
