/* A CUDA runtime without a GPU, for tests of what happens around kernels.
 *
 * ONNX Runtime's real CUDA provider loads against this library and runs: node placement, Memcpy
 * nodes, execution order, allocations and host synchronisations are its own. Kernels do nothing,
 * so results and times mean nothing, and cuBLAS and cuDNN take no workspace.
 *
 * Device memory is host memory; counters are exported (stub_*). Environment:
 *   CUDA_STUB_BYTES      size of the device (default 16 GiB); an allocation beyond it fails
 *   CUDA_STUB_NO_DEVICE  any value: cudaGetDeviceCount reports an insufficient driver
 *   CUDA_STUB_LOG        a file: a line per copy, kernel and pinned allocation, "WHAT STREAM BYTES"
 * Every function that is not here is made by build.py: it returns 0 and does nothing.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long u64;
enum { SUCCESS = 0, OUT_OF_MEMORY = 2, INSUFFICIENT_DRIVER = 35, SLOTS = 1 << 16 };

u64 stub_live, stub_peak, stub_allocations, stub_synchronizations, stub_launches;
u64 stub_to_device, stub_to_host, stub_to_device_bytes, stub_to_host_bytes;

static void note(const char *what, const void *stream, size_t bytes) {
  const char *path = getenv("CUDA_STUB_LOG");
  FILE *file = path ? fopen(path, "a") : NULL;
  if (!file) return;
  fprintf(file, "%s %p %zu\n", what, stream, bytes);
  fclose(file);
}

/* ---- memory ---- */

static struct { void *address; size_t bytes; } table[SLOTS];
static char deleted; /* its address marks a slot that was emptied */

static unsigned slot_of(const void *p) { return ((size_t)p >> 8) % SLOTS; }

static u64 device_bytes(void) {
  const char *text = getenv("CUDA_STUB_BYTES");
  return text ? strtoull(text, NULL, 10) : 16ull << 30;
}

int cudaMalloc(void **p, size_t bytes) {
  size_t rounded = (bytes + 255) & ~(size_t)255;
  *p = NULL;
  if (stub_live + bytes > device_bytes()) return OUT_OF_MEMORY;
  if (!(*p = aligned_alloc(256, rounded ? rounded : 256))) return OUT_OF_MEMORY;
  memset(*p, 0, rounded);
  unsigned i = slot_of(*p);
  while (table[i].address && table[i].address != &deleted) i = (i + 1) % SLOTS;
  table[i].address = *p;
  table[i].bytes = bytes;
  stub_allocations++;
  stub_live += bytes;
  if (stub_live > stub_peak) stub_peak = stub_live;
  return SUCCESS;
}

int cudaFree(void *p) {
  for (unsigned i = slot_of(p); p && table[i].address; i = (i + 1) % SLOTS)
    if (table[i].address == p) {
      stub_live -= table[i].bytes;
      table[i].address = &deleted;
      free(p);
      break;
    }
  return SUCCESS;
}

int cudaMallocFromPoolAsync(void **p, size_t bytes, void *pool, void *stream) {
  return cudaMalloc(p, bytes);
}
int cudaFreeAsync(void *p, void *stream) { return cudaFree(p); }
int cudaHostAlloc(void **p, size_t bytes, unsigned flags) {
  note("pinned", NULL, bytes);
  *p = aligned_alloc(256, (bytes + 256) & ~(size_t)255);
  return SUCCESS;
}
int cudaMallocHost(void **p, size_t bytes) { return cudaHostAlloc(p, bytes, 0); }
int cudaFreeHost(void *p) { free(p); return SUCCESS; }
int cudaMemGetInfo(size_t *available, size_t *total) {
  *total = device_bytes();
  *available = *total - stub_live;
  return SUCCESS;
}

static int copy(void *to, const void *from, size_t bytes, int kind, void *stream) {
  if (kind == 1 || kind == 2) note(kind == 1 ? "to_device" : "to_host", stream, bytes);
  if (kind == 1) { stub_to_device++; stub_to_device_bytes += bytes; }
  if (kind == 2) { stub_to_host++; stub_to_host_bytes += bytes; }
  memcpy(to, from, bytes);
  return SUCCESS;
}
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
  return copy(to, from, bytes, kind, NULL);
}
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
  return copy(to, from, bytes, kind, stream);
}
int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                      size_t height, int kind, void *stream) {
  for (size_t row = 0; row < height; row++)
    memcpy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
  return SUCCESS;
}
int cudaMemset(void *p, int value, size_t bytes) { memset(p, value, bytes); return SUCCESS; }
int cudaMemsetAsync(void *p, int value, size_t bytes, void *stream) {
  return cudaMemset(p, value, bytes);
}
int cudaPointerGetAttributes(void *attributes, const void *p) {
  memset(attributes, 0, 88);
  return SUCCESS;
}

/* ---- device ---- */

int cudaGetDeviceCount(int *count) {
  *count = getenv("CUDA_STUB_NO_DEVICE") ? 0 : 1;
  return *count ? SUCCESS : INSUFFICIENT_DRIVER;
}
int cudaSetDevice(int device) {
  return getenv("CUDA_STUB_NO_DEVICE") ? INSUFFICIENT_DRIVER : SUCCESS;
}
int cudaGetDevice(int *device) { *device = 0; return SUCCESS; }
int cudaDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
int cudaRuntimeGetVersion(int *version) { *version = 13000; return SUCCESS; }
const char *cudaGetErrorName(int e) {
  return e == OUT_OF_MEMORY ? "cudaErrorMemoryAllocation" : "cudaErrorInsufficientDriver";
}
const char *cudaGetErrorString(int e) {
  return e == OUT_OF_MEMORY ? "out of memory"
                            : "CUDA driver version is insufficient for CUDA runtime version";
}
int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  static const struct { int attribute, value; } known[] = {
      {1, 1024}, {8, 49152}, {10, 32}, {16, 132}, {39, 2048}, {75, 9}, {76, 0}, {81, 233472},
      {97, 232448}};
  *value = 1;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (known[i].attribute == attribute) *value = known[i].value;
  return SUCCESS;
}
/* Offsets of cudaDeviceProp, CUDA 13 (driver_types.h). */
int cudaGetDeviceProperties(char *p, int device) {
  static const struct { int offset, value; } known[] = {
      {304, 65536}, {308, 32}, {320, 1024}, {324, 1024}, {328, 1024}, {332, 64}, {336, 2147483647},
      {340, 65535}, {344, 65535}, {360, 9}, {364, 0}, {384, 132}, {596, 50 << 20}, {604, 2048}};
  memset(p, 0, 1008);
  strcpy(p, "Stub GPU");
  *(size_t *)(p + 288) = device_bytes();
  *(size_t *)(p + 296) = 49152;
  *(size_t *)(p + 624) = 233472;
  *(size_t *)(p + 672) = 232448;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    *(int *)(p + known[i].offset) = known[i].value;
  return SUCCESS;
}
int cudaFuncGetAttributes(void *attributes, const void *f) {
  memset(attributes, 0, 144);
  return SUCCESS;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *f, int size,
                                                           size_t shared, unsigned flags) {
  *blocks = 4;
  return SUCCESS;
}

/* ---- driver (what memplan asks libcuda) ---- */

int cuInit(unsigned flags) { return getenv("CUDA_STUB_NO_DEVICE") ? 100 : SUCCESS; }
int cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
int cuDeviceGetCount(int *count) { *count = 1; return SUCCESS; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return SUCCESS; }
int cuDeviceGetName(char *name, int length, int device) {
  strncpy(name, "Stub GPU", length);
  return SUCCESS;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = device_bytes(); return SUCCESS; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  return cudaDeviceGetAttribute(value, attribute, device);
}
int cuTensorMapEncodeTiled(void) { return 100; }

/* ---- streams, events, handles: something that is not null ---- */

static int handle(void **p) { *p = calloc(1, 64); return SUCCESS; }
int cudaStreamCreate(void **p) { return handle(p); }
int cudaStreamCreateWithFlags(void **p, unsigned flags) { return handle(p); }
int cudaEventCreate(void **p) { return handle(p); }
int cudaEventCreateWithFlags(void **p, unsigned flags) { return handle(p); }
int cudaMemPoolCreate(void **p, const void *properties) { return handle(p); }
int cublasCreate_v2(void **p) { return handle(p); }
int cublasLtCreate(void **p) { return handle(p); }
int cudnnCreate(void **p) { return handle(p); }
int cudaEventElapsedTime(float *t, void *a, void *b) { *t = 0; return SUCCESS; }
int cudaEventSynchronize(void *event) { stub_synchronizations++; return SUCCESS; }
int cudaStreamIsCapturing(void *stream, int *status) { *status = 0; return SUCCESS; }
int cublasGetMathMode(void *h, int *mode) { *mode = 0; return SUCCESS; }
const char *cublasGetStatusName(int s) { return "stub"; }
const char *cublasGetStatusString(int s) { return "stub"; }
int cublasLtMatmulAlgoGetHeuristic(void *a, void *b, void *c, void *d, void *e, void *f, void *g,
                                   int wanted, void *results, int *found) {
  *found = 1;
  return SUCCESS;
}
const char *cudnnGetErrorString(int s) { return "stub"; }
size_t cudnnGetVersion(void) { return 91000; }
size_t cudnnGetCudartVersion(void) { return 13000; }

/* ---- TensorRT: only loaded when somebody asks for the list of all kernels ---- */

static long nothing(void) { return 0; }
void **getPluginRegistry(void) {
  static void *methods[256], *object = methods;
  for (int i = 0; i < 256; i++) methods[i] = nothing;
  return &object;
}
int getInferLibVersion(void) { return 101300; }

/* ---- kernels ---- */

void **__cudaRegisterFatBinary(void *image) { static void *registered[4]; return registered; }
int __cudaGetKernel(void **kernel, const void *f) { *kernel = (void *)f; return SUCCESS; }
typedef struct { unsigned x, y, z; } dim3;
typedef struct { dim3 grid, block; size_t shared; void *stream; } launch; /* cudaLaunchConfig_t */

/* What stands between <<< and >>> goes through here. */
static __thread launch configured;
int __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
  configured = (launch){grid, block, shared, stream};
  return SUCCESS;
}
int __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void **stream) {
  *grid = configured.grid;
  *block = configured.block;
  *shared = configured.shared;
  *stream = configured.stream;
  return SUCCESS;
}
static int launched(void *stream) { note("kernel", stream, 0); stub_launches++; return SUCCESS; }
int cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **args, size_t shared,
                     void *stream) {
  return launched(stream);
}
int __cudaLaunchKernel(void *f, dim3 grid, dim3 block, void **args, size_t shared, void *stream) {
  return launched(stream);
}
int cudaLaunchKernelExC(const launch *config, const void *f, void **args) {
  return launched(config->stream);
}
int cudaLibraryLoadData(void **p) { return handle(p); }
int cudaLibraryGetKernel(void **p) { return handle(p); }
int cudaGetDriverEntryPointByVersion(const char *name, void **f) { *f = NULL; return SUCCESS; }
