"""Words that router, worker, supervisor and mps share. Imports none of them, and no TensorFlow, grpc or, but for zmq_frames.py, zmq."""
