"""`headgate upstream NAME`: a local stand-in for a rate-limited service, with books of its own."""

from __future__ import annotations

import inspect
import signal
import threading

import click

from headgate import duration
from headgate.simulate import upstreams

from . import params

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class UpstreamGroup(click.Group):
    """A command for every line of `UPSTREAMS`, with the options that its class names."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(upstreams.UPSTREAMS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        return command_of(name) if name in upstreams.UPSTREAMS else None


@click.group(cls=UpstreamGroup)
def upstream() -> None:
    """Serve a local stand-in for a rate-limited service, to try things without an account.

    It enforces its limits by itself and counts what it accepted and refused, on a clock of its own: open its address in a
    browser, or read `/_books`. `POST /_faults` has calls fail. It serves until SIGTERM or Ctrl-C.
    """


def command_of(name: str) -> click.Command:
    kind = upstreams.load(name)

    def run(
        policy: tuple[str, ...], port: int, host: str, delay: str | float | None, for_: str | float | None, **more: Any
    ) -> None:
        serve(
            upstreams.start(
                name,
                policy or None,
                port=port,
                host=host,
                delay=None if delay is None else duration.parse(delay, zero=True) / 1e6,
                **more,
            ),
            None if for_ is None else duration.parse(for_) / 1e6,
        )

    usual = ", ".join(kind.policies)
    options: list[click.Parameter] = [
        click.Option(
            ["--policy"],
            multiple=True,
            metavar="UNIT=LIMIT/PERIOD",
            help=f"A limit; may be given several times. ,sliding ,calendar ,bucket or ,burst=N may follow, and a period "
            f"of PT0S is a budget that does not refill. Default: {usual}.",
        ),
        click.Option(["--port"], default=0, type=click.IntRange(0, 65535), help="The port; 0 takes one that is free."),
        click.Option(["--host"], default="127.0.0.1", show_default=True, help="The address to listen on."),
        click.Option(
            ["--delay"], type=params.Duration(zero=True), help=f"How long a call takes. Default: {kind.delay_s:g} s."
        ),
        click.Option(["--for", "for_"], type=params.Duration(), help="End by itself after this."),
    ]
    options += [_option(title, option) for title, option in kind.options.items()]
    return click.Command(
        name, params=options, callback=run, help=f"{kind.summary}\n\n{inspect.cleandoc(kind.__doc__ or '')}"
    )


def _option(name: str, option: upstreams.Option) -> click.Option:
    flag = f"--{name.replace('_', '-')}"
    if isinstance(option.default, bool):
        return click.Option([flag], is_flag=True, default=option.default, help=option.help)
    return click.Option(
        [flag], default=option.default, type=type(option.default), show_default=option.default != "", help=option.help
    )


def serve(server: upstreams.UpstreamThread, seconds: float | None) -> None:
    ended = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: ended.set())
    try:
        with server:
            policies = ", ".join(policy.as_text() for policy in server.upstream.books.policies)
            click.echo(f"headgate: {server.upstream.name} on {server.url} ({policies})")
            ended.wait(seconds)
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
    books = server.books()
    click.echo(f"headgate: {books['accepted']:,} accepted, {books['refused']:,} refused", err=True)
