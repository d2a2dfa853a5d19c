"""TensorFlow Serving's messages and TensorFlow's element types, without TensorFlow.

The message names and field numbers are the real ones. They live in a descriptor pool of our own:
in a worker, TensorFlow registers files of the same names in the default pool, and two definitions
of one name in one pool do not go together. So a message of this module is no instance of
TensorFlow's class of the same name; between the two only bytes travel.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper

from mpspool.core.methods import Method

if TYPE_CHECKING:
    import numpy as np

PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
MODEL_SERVICE = "tensorflow.serving.ModelService"
DEFAULT_SIGNATURE = "serving_default"
# The one metadata field of GetModelMetadata.
SIGNATURE_DEF = "signature_def"


def _load_pool() -> descriptor_pool.DescriptorPool:
    data = (Path(__file__).parent / "protos/descriptors.binpb").read_bytes()
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        pool.Add(file)
    return pool


POOL = _load_pool()


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(name))


TensorProto = _message("tensorflow.TensorProto")
TensorShapeProto = _message("tensorflow.TensorShapeProto")
TensorInfo = _message("tensorflow.TensorInfo")
SignatureDef = _message("tensorflow.SignatureDef")
ModelSpec = _message("tensorflow.serving.ModelSpec")
PredictRequest = _message("tensorflow.serving.PredictRequest")
PredictResponse = _message("tensorflow.serving.PredictResponse")
Example = _message("tensorflow.Example")
ClassificationRequest = _message("tensorflow.serving.ClassificationRequest")
ClassificationResult = _message("tensorflow.serving.ClassificationResult")
ClassificationResponse = _message("tensorflow.serving.ClassificationResponse")
RegressionResponse = _message("tensorflow.serving.RegressionResponse")
MultiInferenceRequest = _message("tensorflow.serving.MultiInferenceRequest")
MultiInferenceResponse = _message("tensorflow.serving.MultiInferenceResponse")
SignatureDefMap = _message("tensorflow.serving.SignatureDefMap")
GetModelMetadataRequest = _message("tensorflow.serving.GetModelMetadataRequest")
GetModelMetadataResponse = _message("tensorflow.serving.GetModelMetadataResponse")
ReloadConfigRequest = _message("tensorflow.serving.ReloadConfigRequest")
ReloadConfigResponse = _message("tensorflow.serving.ReloadConfigResponse")
GetModelStatusRequest = _message("tensorflow.serving.GetModelStatusRequest")
GetModelStatusResponse = _message("tensorflow.serving.GetModelStatusResponse")
ModelVersionStatus = _message("tensorflow.serving.ModelVersionStatus")
StatusProto = _message("tensorflow.serving.StatusProto")
ModelType = enum_type_wrapper.EnumTypeWrapper(POOL.FindEnumTypeByName("tensorflow.serving.ModelType"))
PredictionLog = _message("tensorflow.serving.PredictionLog")
# Of its fields, the one for each method of gRPC.
LOG_FIELDS = {
    Method.PREDICT: "predict_log",
    Method.CLASSIFY: "classify_log",
    Method.REGRESS: "regress_log",
    Method.MULTI_INFERENCE: "multi_inference_log",
}
BatchingParameters = _message("tensorflow.serving.BatchingParameters")
ModelServerConfig = _message("tensorflow.serving.ModelServerConfig")
PlatformConfigMap = _message("tensorflow.serving.PlatformConfigMap")
SavedModelBundleSourceAdapterConfig = _message("tensorflow.serving.SavedModelBundleSourceAdapterConfig")
SavedModelBundleV2SourceAdapterConfig = _message("tensorflow.serving.SavedModelBundleV2SourceAdapterConfig")
ConfigProto = _message("tensorflow.ConfigProto")
SavedModelConfig = _message("tensorflow.serving.SavedModelConfig")
MonitoringConfig = _message("tensorflow.serving.MonitoringConfig")
SSLConfig = _message("tensorflow.serving.SSLConfig")
RawPredictRequest = _message("mpspool.RawPredictRequest")
RawPredictResponse = _message("mpspool.RawPredictResponse")
RawTensor = _message("mpspool.RawTensor")
RawExamplesRequest = _message("mpspool.RawExamplesRequest")
RawMultiInferenceRequest = _message("mpspool.RawMultiInferenceRequest")


def model_specs(request: Any) -> list[Any]:
    """Every model_spec of a request that runs a model, to be changed in place."""
    if isinstance(request, MultiInferenceRequest):
        return [task.model_spec for task in request.tasks]
    return [request.model_spec]


def methods(service: str) -> list[str]:
    """The method names of a service, as ["Predict", ...]. Raises KeyError for an unknown one."""
    return [method.name for method in POOL.FindServiceByName(service).methods]


class DataType(NamedTuple):
    """An element type under each of its names.

    Attributes:
        number: its value of the enum tensorflow.DataType.
        name: "DT_FLOAT".
        text: what TensorFlow calls it in its messages: "float".
        numpy_name: of the numpy or ml_dtypes type; empty where there is none. The quantized types
            have that of the integer they are stored as.
        field: the list field of TensorProto that holds its values; empty where it cannot be fed.
    """

    number: int
    name: str
    text: str
    numpy_name: str
    field: str


# Text, numpy name (where another), list field; in the order of the numbers from 1 on.
_TYPES = (
    ("float", "float32", "float_val"),
    ("double", "float64", "double_val"),
    ("int32", "", "int_val"),
    ("uint8", "", "int_val"),
    ("int16", "", "int_val"),
    ("int8", "", "int_val"),
    ("string", "object", "string_val"),
    ("complex64", "", "scomplex_val"),
    ("int64", "", "int64_val"),
    ("bool", "", "bool_val"),
    ("qint8", "int8", "int_val"),
    ("quint8", "uint8", "int_val"),
    ("qint32", "int32", "int_val"),
    ("bfloat16", "", "half_val"),
    ("qint16", "int16", "int_val"),
    ("quint16", "uint16", "int_val"),
    ("uint16", "", "int_val"),
    ("complex128", "", "dcomplex_val"),
    ("half", "float16", "half_val"),
    ("resource", "", ""),
    ("variant", "", ""),
    ("uint32", "", "uint32_val"),
    ("uint64", "", "uint64_val"),
    ("float8_e5m2", "", "float8_val"),
    ("float8_e4m3fn", "", "float8_val"),
    ("float8_e4m3fnuz", "", "float8_val"),
    ("float8_e4m3b11fnuz", "", "float8_val"),
    ("float8_e5m2fnuz", "", "float8_val"),
    ("int4", "", "int_val"),
    ("uint4", "", "int_val"),
    ("int2", "", "int_val"),
    ("uint2", "", "int_val"),
    ("float4_e2m1fn", "", "float8_val"),
)

DATA_TYPES: dict[int, DataType] = {
    number: DataType(number, f"DT_{text.upper()}", text, numpy_name or text if field else "", field)
    for number, (text, numpy_name, field) in enumerate(_TYPES, start=1)
}
DATA_TYPES_BY_NAME: dict[str, DataType] = {data_type.name: data_type for data_type in DATA_TYPES.values()}
DT_STRING = DATA_TYPES_BY_NAME["DT_STRING"].number


def type_text(number: int) -> str:
    """A type as TensorFlow's messages name it, also one that it does not know."""
    if number == 0:
        return "INVALID"
    if number - 100 in DATA_TYPES:
        return f"{DATA_TYPES[number - 100].text}_ref"
    known = DATA_TYPES.get(number)
    return known.text if known else f"unknown dtype enum ({number})"


@cache
def numpy_dtype(number: int) -> np.dtype[Any]:
    """The dtype of a type's arrays in memory, a quantized type's being that of its integer.

    Raises:
        KeyError: it has no arrays (resource, variant, a reference, an unknown number).
    """
    import numpy as np

    name = DATA_TYPES[number].numpy_name
    if not name:
        raise KeyError(number)
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype


@cache
def number_of(dtype: np.dtype[Any]) -> int:
    """The type of an array with this dtype; that of strings for object, bytes and str arrays.

    Raises:
        KeyError: no type has such arrays.
    """
    if dtype.names:
        return DATA_TYPES_BY_NAME[f"DT_{dtype.names[0].upper()}"].number
    if dtype.kind in "OSU":
        return DT_STRING
    for number, data_type in DATA_TYPES.items():
        if data_type.numpy_name == dtype.name and not data_type.text.startswith(("q", "s")):
            return number
    raise KeyError(dtype.name)
