// What TensorFlow asks of a GPU's driver and of NVML before it lists the GPU, answered as told in the environment.
// Compiled under other names it stands for the CUDA libraries, of which nothing is asked until then.

#include <cstdlib>
#include <cstring>

namespace {

int Told(const char* variable, int otherwise) {
  const char* value = std::getenv(variable);
  return value == nullptr ? otherwise : std::atoi(value);
}

constexpr int kCapabilityMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
constexpr int kCapabilityMinor = 76;

}  // namespace

extern "C" {

int cuInit(unsigned) { return Told("TESTING_CUDA_INIT", 0); }

int cuDriverGetVersion(int* version) {
  *version = Told("TESTING_CUDA_VERSION", 12090);
  return 0;
}

int cuDeviceGetCount(int* count) {
  *count = Told("TESTING_CUDA_DEVICES", 1);
  return 0;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}

int cuDeviceGetName(char* name, int length, int) {
  std::strncpy(name, "Testing", length);
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == kCapabilityMajor ? 9 : attribute == kCapabilityMinor ? 0 : 1;
  return 0;
}

int cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = size_t{80} << 30;
  return 0;
}

int cuDeviceGetPCIBusId(char* id, int length, int) {
  std::strncpy(id, "0000:0a:00.0", length);
  return 0;
}

int cuDeviceGetUuid(char* uuid, int device) {
  std::memset(uuid, device + 1, 16);
  return 0;
}

int cuGetErrorName(int, const char** name) {
  *name = "CUDA_ERROR_TESTING";
  return 0;
}

int cuGetErrorString(int, const char** text) {
  *text = "as it was told";
  return 0;
}

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
const char* nvmlErrorString(int) { return "as it was told"; }

int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** handle) {
  *handle = nullptr;
  return 0;
}

int nvmlDeviceGetNvLinkState(void*, unsigned, int* state) {
  *state = 0;
  return 0;
}

int nvmlDeviceGetNvLinkCapability(void*, unsigned, int, unsigned* capable) {
  *capable = 0;
  return 0;
}

int nvmlDeviceGetCurrPcieLinkGeneration(void*, unsigned* generation) {
  *generation = 4;
  return 0;
}

int nvmlDeviceGetCurrPcieLinkWidth(void*, unsigned* width) {
  *width = 16;
  return 0;
}

int nvmlDeviceGetGpuFabricInfoV(void*, void*) { return 3; }  // NVML_ERROR_NOT_SUPPORTED

}  // extern "C"
