"""One Predict call from JSON, as the command line makes it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Any

import grpc

from mpspool.core import json_tensors, tfs
from mpspool.core.client_tls import LEAVE_OUT, MAY_HAVE_NONE, MAY_WANT, ClientTls
from mpspool.core.errors import PoolError

_Metadata = Sequence[tuple[str, str | bytes]]

_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

# What gRPC says of a first answer that is no HTTP/2.
_NOT_GRPC = re.compile(r"SETTINGS frame|http1\.x server")


# What it says where a server that speaks TLS is spoken to without.
_CUT_OFF = re.compile(r"Socket closed|[Cc]onnection reset|Broken pipe|GOAWAY received|peer closed")
# And of TLS.
_TLS_WORDS = {
    "WRONG_VERSION_NUMBER": f"it speaks without TLS; {LEAVE_OUT}",
    "Handshake read failed": MAY_HAVE_NONE,
    "CERTIFICATE_VERIFY_FAILED": "its certificate is of no CA that is trusted here, or has expired; give --ca",
    "Hostname Verification": "its certificate is for another name; give one that it is for as --server-name",
    "TSI_DATA_CORRUPTED": "it refuses us; give --cert and --key, with a certificate of a CA that it trusts",
}


class CallError(Exception):
    """The call failed: "CODE: text"."""


class UnreachableError(CallError):
    """Nobody answers at the address."""


class NotGrpcError(CallError):
    """What answers at the address speaks another protocol."""


def predict(
    address: str,
    name: str,
    document: Any,
    *,
    signature: str,
    version: int | None,
    timeout_s: float,
    metadata: _Metadata = (),
    tls: ClientTls | None = None,
) -> dict[str, Any]:
    """Asks for the model's signatures, builds the request by them, and returns the outputs.

    Args:
        address: HOST:PORT.
        name: of the model.
        document: the inputs.
        signature: "" for the default one.
        version: None for the latest.
        timeout_s: of each call.
        metadata: of each call, as core.metadata has it.
        tls: None for clear text.

    Raises:
        UnreachableError, NotGrpcError: there is no server of ours.
        CallError: the server's code and text, with the input that explains it; or what cannot be sent.
        TlsError: a file of `tls` cannot be read.
    """
    with _channel(address, tls) as channel:
        try:
            signatures = _signatures(channel, name, version, timeout_s, metadata)
            body = json_tensors.request(name, document, signatures, signature=signature, version=version)
            try:
                return json_tensors.response(_call(channel, "Predict", body, timeout_s, metadata))
            except grpc.RpcError as error:
                misfit = json_tensors.misfit(document, signatures, signature=signature)
                if error.code() is not grpc.StatusCode.INVALID_ARGUMENT or not misfit:
                    raise
                raise CallError(f"{_text(error)}\n{misfit}") from error
        except PoolError as error:
            raise CallError(f"{error.code.name}: {error.message}") from error
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE and (why := _of_tls(error.details(), tls)):
                raise CallError(f"UNAVAILABLE: {address}: {why} ({error.details()})") from error
            if error.code() is grpc.StatusCode.UNAVAILABLE and _NOT_GRPC.search(error.details()):
                text = (
                    f"UNAVAILABLE: what listens at {address} does not speak gRPC; it looks like an HTTP port"
                )
                raise NotGrpcError(text) from error
            if error.code() is grpc.StatusCode.UNAVAILABLE and "connect" in error.details().lower():
                raise UnreachableError(f"{_text(error)}; is a server running at {address}?") from error
            raise CallError(_text(error)) from error


def _channel(address: str, tls: ClientTls | None) -> grpc.Channel:
    """Raises TlsError."""
    options: list[tuple[str, int | str]] = [*_options(address)]
    if tls is None:
        return grpc.insecure_channel(address, options=options)
    if tls.name:
        options.append(("grpc.ssl_target_name_override", tls.name))
    cert, key = tls.pair()
    credentials = grpc.ssl_channel_credentials(tls.roots() or None, key or None, cert or None)
    return grpc.secure_channel(address, credentials, options=options)


def _of_tls(said: str, tls: ClientTls | None) -> str:
    """What gRPC's words on a connection that did not come about most likely mean; "" for nothing that has to do with TLS."""
    if tls is None:
        found = _CUT_OFF.search(said)
        return MAY_WANT if found else ""
    for words, meaning in _TLS_WORDS.items():
        if words in said:
            return meaning
    return ""


def _options(address: str) -> list[tuple[str, int]]:
    """No proxy reaches this machine's own loopback; whether http_proxy is for others, gRPC decides as for all."""
    return [*_OPTIONS, ("grpc.enable_http_proxy", 0)] if _is_loopback(address) else _OPTIONS


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _text(error: grpc.RpcError) -> str:
    return f"{error.code().name}: {error.details()}"


def _signatures(
    channel: grpc.Channel, name: str, version: int | None, timeout_s: float, metadata: _Metadata
) -> Any:
    request = tfs.GetModelMetadataRequest(metadata_field=[tfs.SIGNATURE_DEF])
    request.model_spec.name = name
    if version is not None:
        request.model_spec.version.value = version
    answer = _call(channel, "GetModelMetadata", request.SerializeToString(), timeout_s, metadata)
    found = tfs.GetModelMetadataResponse.FromString(answer).metadata
    return tfs.SignatureDefMap.FromString(found[tfs.SIGNATURE_DEF].value)


def _call(channel: grpc.Channel, method: str, body: bytes, timeout_s: float, metadata: _Metadata) -> bytes:
    call = channel.unary_unary(f"/{tfs.PREDICTION_SERVICE}/{method}")
    answer: bytes = call(body, timeout=timeout_s, metadata=metadata)
    return answer
