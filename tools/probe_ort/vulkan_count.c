/* A libvulkan.so.1 that counts buffers: forwards everything to MEMPLAN_VULKAN, the real loader.

   WebGPU's provider gives every tensor a buffer of its own (storage usage), so this is what an
   allocator that counts is elsewhere. Handles and sizes are kept in a table; the provider frees a
   buffer once the device has ended the work that used it. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef void (*Function)(void);
typedef Function (*Look)(void *, const char *);
struct BufferInfo { int type; const void *next; uint32_t flags; uint64_t size; uint32_t usage; };
typedef int (*Create)(void *, const struct BufferInfo *, const void *, uint64_t *);
typedef void (*Destroy)(void *, uint64_t, const void *);

enum { STORAGE = 0x20, SLOTS = 1 << 20 };
static Look real_instance, real_device;
static Create real_create;
static Destroy real_destroy;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { uint64_t handle, size; } table[SLOTS];
/* Storage buffers: how many were made, their bytes, bytes alive, and the most alive at once. */
int64_t count_made, count_made_bytes, count_live_bytes, count_peak_bytes;

void count_reset(void) { count_made = count_made_bytes = 0; count_peak_bytes = count_live_bytes; }

static uint64_t *slot(uint64_t handle, int empty) {
  uint64_t at = (handle * 0x9E3779B97F4A7C15ull) >> 44;
  for (;; at = (at + 1) % SLOTS) {
    if (table[at].handle == handle && handle) return &table[at].size;
    if (!table[at].handle) {
      if (!empty) return NULL;
      table[at].handle = handle;
      return &table[at].size;
    }
  }
}

static int create(void *device, const struct BufferInfo *info, const void *with, uint64_t *made) {
  int status = real_create(device, info, with, made);
  if (status || !(info->usage & STORAGE)) return status;
  pthread_mutex_lock(&lock);
  *slot(*made, 1) = info->size;
  count_made++;
  count_made_bytes += info->size;
  count_live_bytes += info->size;
  if (count_live_bytes > count_peak_bytes) count_peak_bytes = count_live_bytes;
  pthread_mutex_unlock(&lock);
  return status;
}

static void destroy(void *device, uint64_t buffer, const void *with) {
  pthread_mutex_lock(&lock);
  uint64_t *size = buffer ? slot(buffer, 0) : NULL;
  if (size) { count_live_bytes -= *size; *size = 0; }
  pthread_mutex_unlock(&lock);
  real_destroy(device, buffer, with);
}

static Function device_function(void *device, const char *name) {
  Function found = real_device(device, name);
  if (!strcmp(name, "vkCreateBuffer")) { real_create = (Create)found; return (Function)create; }
  if (!strcmp(name, "vkDestroyBuffer")) { real_destroy = (Destroy)found; return (Function)destroy; }
  return found;
}

Function vkGetInstanceProcAddr(void *instance, const char *name) {
  if (!real_instance) {
    void *library = dlopen(getenv("MEMPLAN_VULKAN"), RTLD_NOW | RTLD_LOCAL);
    if (!library) return NULL;
    real_instance = (Look)dlsym(library, "vkGetInstanceProcAddr");
  }
  Function found = real_instance(instance, name);
  if (found && !strcmp(name, "vkGetDeviceProcAddr")) { real_device = (Look)found; return (Function)device_function; }
  return found;
}
