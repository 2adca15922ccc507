"""What routes find on the application: the host that ``app.py`` started."""

from __future__ import annotations

from starlette.requests import Request

from reward_server.host import Host


def host_of(request: Request) -> Host:
    host = request.app.state.host
    assert isinstance(host, Host)
    return host
