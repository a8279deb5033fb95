"""Ed25519 signatures of bundles, with keys in PEM files as `openssl genpkey` writes them.

A signature is 64 raw bytes, which OpenSSL 3 can check:
`openssl pkeyutl -verify -pubin -inkey KEY.pub -rawin -in FILE -sigfile FILE.sig`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tuner.deploy.bundle.verify import SignatureCheck, read_at_most
from tuner.errors import BundleRefused, UnusableKey

try:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519
except ImportError:
    raise UnusableKey(
        "signatures need the cryptography package: pip install 'engine-tuner[bundle]'"
    ) from None

_LARGEST_KEY = 64 << 10  # bytes
_MAKE = "make one with `openssl genpkey -algorithm ed25519 -out KEY.pem`"


def signer(private_key: Path) -> Callable[[bytes], bytes]:
    """A function that signs with an unencrypted private key. Raises UnusableKey or BadInput."""
    data = read_at_most(private_key, _LARGEST_KEY)
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise UnusableKey(
            f"{private_key} holds no private key without a password; {_MAKE}"
        ) from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise UnusableKey(f"{private_key} is not an ed25519 key; {_MAKE}")
    return key.sign


def checker(public_key: Path) -> SignatureCheck:
    """A function that checks a signature with a public key, and raises BundleRefused.

    Raises UnusableKey or BadInput.
    """
    data = read_at_most(public_key, _LARGEST_KEY)
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise UnusableKey(
            f"{public_key} holds no public key; take it out of the private one with "
            "`openssl pkey -in KEY.pem -pubout -out KEY.pub`"
        ) from None
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise UnusableKey(f"{public_key} is not an ed25519 key; {_MAKE}")
    verifying = key

    def check(archive: bytes, signature: bytes) -> None:
        try:
            verifying.verify(signature, archive)
        except InvalidSignature:
            raise BundleRefused(f"the signature is not one of {public_key.name}'s key") from None

    return check
