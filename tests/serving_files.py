"""Files as people write them for TensorFlow Serving, DeepRec and EAS."""

from __future__ import annotations

MODEL_CONFIG = """
model_config_list:{{
    config:{{
      name:"pb1",
      base_path:"{root}/pb1",
      model_platform:"tensorflow",
      model_id: 0
    }},
    config:{{
      name:"pb2",
      base_path:"{root}/pb2",
      model_platform:"tensorflow",
      model_id: 1
    }},
}}
"""

PLATFORM_CONFIG = """
platform_configs {
  key: "tensorflow"
  value {
    source_adapter_config {
      [type.googleapis.com/tensorflow.serving.SavedModelBundleV2SourceAdapterConfig] {
        legacy_config {
          model_session_config {
            session_config {
              gpu_options {
                allow_growth: true
              }
              intra_op_parallelism_threads: 8
              inter_op_parallelism_threads: 8
              use_per_session_threads: true
              use_per_session_stream: true
            }
            session_num: 2
            cpusets: "1,2;5,6"
            gpu_ids: [0,1]
          }
          model_session_config {
            session_config {
              gpu_options {
                allow_growth: true
              }
              intra_op_parallelism_threads: 16
              inter_op_parallelism_threads: 16
              use_per_session_threads: true
              use_per_session_stream: true
            }
            session_num: 2
            cpusets: "20,21;23,24;26,27;29,30"
            gpu_ids: [2,3]
          }
        }
      }
    }
  }
}
"""

_EAS_MODEL = """
    {{
      "model_path": "https://example.com/libserving_processor.tar.gz",
      "model_entry": "",
      "name": "{name}",
      "processor": "tensorflow",
      "uncompress": true,
      "model_config": {{
        "session_num": {sessions},
        "use_per_session_threads": true,
        "cpusets": "{cpusets}",
        "omp_num_threads": 24,
        "kmp_blocktime": 0,
        "feature_store_type": "memory",
        "serialize_protocol": "protobuf",
        "inter_op_parallelism_threads": 24,
        "intra_op_parallelism_threads": 24,
        "init_timeout_minutes": 1,
        "signature_name": "serving_default",
        "model_store_type": "local",
        "checkpoint_dir": "/data/workspace/ckpt/",
        "savedmodel_dir": "{root}/{folder}/",
        "oss_access_id": "",
        "oss_access_key": "",
        "oss_endpoint": "oss-cn-shanghai.aliyuncs.com"
      }}
    }}"""


def eas_service(root: object) -> str:
    """Two models of one EAS service, with a comma too many."""
    models = [
        _EAS_MODEL.format(name="model1", sessions=2, cpusets="1,2,3;4,5,6", root=root, folder="pb1"),
        _EAS_MODEL.format(
            name="model2", sessions=4, cpusets="7-9;10-12;13-15;16-18", root=root, folder="pb2"
        ),
    ]
    return f"""{{
  "platform": "local",
  "engine": "python",
  "language_type": "PYTHON",
  "name": "pttest",
  "models": [{",".join(models)}
  ],
  "processors": [
    {{
      "name": "tensorflow",
      "processor_path": "https://example.com/libserving_processor.tar.gz",
      "processor_entry": "libserving_processor.so",
      "processor_type": "cpp"
    }}
  ],
  "metadata":{{
    "cpu":32,
    "eas":{{
      "enabled_model_verification":false,
      "scheduler":{{
        "enable_cpuset": false
      }}
    }},
    "gpu":0,
    "instance":1,
    "memory":40960,
    "rpc":{{
      "io_threads":10,
      "worker_threads":20,
      "enable_jemalloc":true
    }}
  }},
}}
"""
