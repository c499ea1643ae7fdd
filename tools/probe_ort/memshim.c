/* LD_PRELOAD shim: an ordered trace of the blocks ONNX Runtime's CPU allocator hands out.
 *
 * CPUAllocator::Alloc of 1.31.1 is `operator new(size, align_val_t(64))`, so replacing the
 * aligned operators sees every tensor and every kernel scratch block with its exact size.
 * An event is two words: block address, then +size for an allocation and -size for a release.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#define SLOTS (1u << 20)
#define GONE ((void *)1)

static struct {
    void *block;
    size_t size;
} table[SLOTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t *events;
static int64_t count, capacity;

static uint32_t slot_of(void *block) {
    return (uint32_t)((((uint64_t)block >> 4) * 0x9E3779B97F4A7C15ull) >> 44) & (SLOTS - 1);
}

static void record(void *block, int64_t size) {
    if (events && count < capacity) {
        events[2 * count] = (int64_t)(intptr_t)block;
        events[2 * count + 1] = size;
        count++;
    }
}

static void add(void *block, size_t size) {
    pthread_mutex_lock(&lock);
    uint32_t slot = slot_of(block);
    while (table[slot].block && table[slot].block != GONE) slot = (slot + 1) & (SLOTS - 1);
    table[slot].block = block;
    table[slot].size = size;
    record(block, (int64_t)size);
    pthread_mutex_unlock(&lock);
}

static void drop(void *block) {
    pthread_mutex_lock(&lock);
    for (uint32_t slot = slot_of(block); table[slot].block; slot = (slot + 1) & (SLOTS - 1)) {
        if (table[slot].block != block) continue;
        record(block, -(int64_t)table[slot].size);
        table[slot].block = GONE;
        break;
    }
    pthread_mutex_unlock(&lock);
}

void *_ZnwmSt11align_val_t(size_t size, size_t align) {
    void *block = 0;
    if (posix_memalign(&block, align < sizeof(void *) ? sizeof(void *) : align, size ? size : 1))
        abort();
    add(block, size);
    return block;
}

void _ZdlPvSt11align_val_t(void *block, size_t align) {
    (void)align;
    if (block) drop(block);
    free(block);
}

void _ZdlPvmSt11align_val_t(void *block, size_t size, size_t align) {
    (void)size;
    _ZdlPvSt11align_val_t(block, align);
}

void shim_start(int64_t *buffer, int64_t limit) {
    pthread_mutex_lock(&lock);
    events = buffer;
    capacity = limit;
    count = 0;
    pthread_mutex_unlock(&lock);
}

int64_t shim_stop(void) {
    pthread_mutex_lock(&lock);
    events = 0;
    int64_t recorded = count;
    pthread_mutex_unlock(&lock);
    return recorded;
}
