"""The front door: protocols, data plane, scheduler, ZeroMQ. Imports no TensorFlow."""

import os

# gRPC's event engine hands a request from thread to thread, piece by piece; its older poller reads it in one
# thread, for less CPU (ADR 4). It is asked when grpc is imported: so before any module of this package is. What
# a later gRPC does not know any more it says once, and goes on.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener,-event_engine_callback_cq")
