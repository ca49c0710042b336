"""Start and stop the server of the live page."""

import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from gyroscope.live.incident_lines import IncidentLines
from gyroscope.live.run_index import RunIndex

# Seconds for open connections to close after Ctrl-C.
SHUTDOWN_TIMEOUT = 2


def watch(
    root: Path, *, host: str = "127.0.0.1", port: int = 0, browser: bool = True, say: Callable[[str], None] = print
) -> None:
    """Serve the runs below a directory until interrupted.

    Args:
        root: the directory.
        host: address to serve at. For any but this machine's own, the printed address contains a token, without which
            nothing is shown.
        port: 0 takes a free one.
        browser: open the page.
        say: is called with the line that names the address, and with a line for each incident of a run that trains.
    """
    index = RunIndex(root)
    uvicorn, application = _server()
    bound = _bind(host, port)
    token = None if _is_local(host) else secrets.token_urlsafe(16)
    served = application(index, token)
    options = {"log_level": "warning", "timeout_graceful_shutdown": SHUTDOWN_TIMEOUT, "ws": "none"}
    server: Any = uvicorn.Server(uvicorn.Config(served, **options))
    address = _address(host, bound.getsockname()[1]) + (f"?token={token}" if token else "")
    say(f"watching {index.root} at {address} (Ctrl-C ends)")
    if browser:
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    lines = IncidentLines(index, say)
    lines.start()
    try:
        server.run(sockets=[bound])
    except KeyboardInterrupt:  # uvicorn raises it again after it has stopped
        pass
    finally:
        lines.stop()
        bound.close()


def _server() -> tuple[Any, Any]:
    try:
        import uvicorn

        from gyroscope.live.server import application
    except ImportError as error:
        raise ValueError(f"{error.name} is missing: pip install 'gyroscope[live]'") from None
    return uvicorn, application


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ValueError(f"there is no address {host!r} on this machine: {error.strerror or error}") from None
    bound = socket.socket(family, kind, protocol)
    try:
        # Otherwise the port would be refused for a minute after a server has stopped.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(place)
        # A browser that comes before the server is ready waits.
        bound.listen()
    except OSError as error:
        bound.close()
        raise ValueError(
            f"cannot serve at {host}, port {port}: {error.strerror or error}. Leave --port out to take a free one"
        ) from None
    return bound


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _address(host: str, port: int) -> str:
    name = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    return f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"
