"""MLServer's custom runtime around tf_model."""

import tf_model  # type: ignore[import-not-found]
from mlserver import MLModel  # type: ignore[import-not-found]
from mlserver.codecs import NumpyCodec  # type: ignore[import-not-found]
from mlserver.types import InferenceRequest, InferenceResponse  # type: ignore[import-not-found]


class Runtime(MLModel):  # type: ignore[misc]
    async def load(self) -> bool:
        self._call = tf_model.load()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        outputs = self._call({tensor.name: NumpyCodec.decode_input(tensor) for tensor in payload.inputs})
        encoded = [NumpyCodec.encode_output(name, array) for name, array in outputs.items()]
        return InferenceResponse(model_name=self.name, outputs=encoded)
