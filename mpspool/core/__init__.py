"""Words that router, worker, supervisor and mps share. Imports none of them, and no TensorFlow, zmq or grpc."""
