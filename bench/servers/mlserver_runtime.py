"""MLServer's custom runtime around tf_model."""

import tf_model
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Runtime(MLModel):
    async def load(self) -> bool:
        self._call = tf_model.load()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        outputs = self._call({tensor.name: NumpyCodec.decode_input(tensor) for tensor in payload.inputs})
        encoded = [NumpyCodec.encode_output(name, array) for name, array in outputs.items()]
        return InferenceResponse(model_name=self.name, outputs=encoded)
