"""TLS before a server that has none, as a cloud's Redis is offered."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class TlsProxy:
    port: int
    certificate: Path  # of the authority that signed the proxy's own


@contextlib.contextmanager
def tls_proxy(behind: int, folder: Path) -> Iterator[TlsProxy]:
    """Passes what comes by TLS on to the port `behind` of this machine, until the block ends."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, context, behind), daemon=True).start()
        yield TlsProxy(listener.getsockname()[1], folder / "ca.pem")
        listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, context: ssl.SSLContext, behind: int) -> None:
    with contextlib.suppress(OSError):  # the listener was closed
        while True:
            client, _ = listener.accept()
            with contextlib.suppress(OSError):  # a client that trusts nobody hangs up
                near = context.wrap_socket(client, server_side=True)
                far = socket.create_connection(("127.0.0.1", behind))
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=_pump, args=(source, target), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
