"""One Predict call from JSON, as the command line makes it."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

import grpc

from mpspool.core import json_tensors, tfs
from mpspool.core.errors import PoolError

_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

# What gRPC says of a first answer that is no HTTP/2.
_NOT_GRPC = re.compile(r"SETTINGS frame|http1\.x server")


class CallError(Exception):
    """The call failed: "CODE: text"."""


class UnreachableError(CallError):
    """Nobody answers at the address."""


class NotGrpcError(CallError):
    """What answers at the address speaks another protocol."""


def predict(
    address: str, name: str, document: Any, *, signature: str, version: int | None, timeout_s: float
) -> dict[str, Any]:
    """Asks for the model's signatures, builds the request by them, and returns the outputs.

    Raises:
        UnreachableError, NotGrpcError: there is no server of ours.
        CallError: the server's code and text, with the input that explains it; or what cannot be sent.
    """
    with grpc.insecure_channel(address, options=_options(address)) as channel:
        try:
            signatures = _signatures(channel, name, version, timeout_s)
            body = json_tensors.request(name, document, signatures, signature=signature, version=version)
            try:
                return json_tensors.response(_call(channel, "Predict", body, timeout_s))
            except grpc.RpcError as error:
                misfit = json_tensors.misfit(document, signatures, signature=signature)
                if error.code() is not grpc.StatusCode.INVALID_ARGUMENT or not misfit:
                    raise
                raise CallError(f"{_text(error)}\n{misfit}") from error
        except PoolError as error:
            raise CallError(f"{error.code.name}: {error.message}") from error
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE and _NOT_GRPC.search(error.details()):
                text = (
                    f"UNAVAILABLE: what listens at {address} does not speak gRPC; it looks like an HTTP port"
                )
                raise NotGrpcError(text) from error
            if error.code() is grpc.StatusCode.UNAVAILABLE and "connect" in error.details().lower():
                raise UnreachableError(f"{_text(error)}; is a server running at {address}?") from error
            raise CallError(_text(error)) from error


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


def _signatures(channel: grpc.Channel, name: str, version: int | None, timeout_s: float) -> Any:
    request = tfs.GetModelMetadataRequest(metadata_field=[tfs.SIGNATURE_DEF])
    request.model_spec.name = name
    if version is not None:
        request.model_spec.version.value = version
    answer = _call(channel, "GetModelMetadata", request.SerializeToString(), timeout_s)
    metadata = tfs.GetModelMetadataResponse.FromString(answer).metadata
    return tfs.SignatureDefMap.FromString(metadata[tfs.SIGNATURE_DEF].value)


def _call(channel: grpc.Channel, method: str, body: bytes, timeout_s: float) -> bytes:
    answer: bytes = channel.unary_unary(f"/{tfs.PREDICTION_SERVICE}/{method}")(body, timeout=timeout_s)
    return answer
