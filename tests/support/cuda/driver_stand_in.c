/* A stand-in for the functions of CUDA's driver (libcuda) that share device memory between processes.
 *
 * Device memory is a memfd. As with the driver, the memory lives as long as a handle, a mapping or a file descriptor of
 * it in any process. Arguments that the driver would refuse get an error. The declarations follow cuda.h of CUDA 13.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef int CUresult;
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_HANDLE = 400 };

typedef struct { int type; int id; } CUmemLocation;
typedef struct {
    int type;
    int requestedHandleTypes;
    CUmemLocation location;
    void *win32HandleMetaData;
    struct {
        unsigned char compressionType;
        unsigned char gpuDirectRDMACapable;
        unsigned short usage;
        unsigned char reserved[4];
    } allocFlags;
} CUmemAllocationProp;
typedef struct { CUmemLocation location; int flags; } CUmemAccessDesc;

enum { UNIT = 2 << 20, MANY = 64 };
static struct { int fd; size_t size; int used; } handles[MANY];
static struct { char *address; size_t size; int mapped, used; } reserved[MANY];
static uint64_t budget = UINT64_MAX;
static int supported = 1, context = 0;

/* For CuPy's stand-in: the runtime makes a context at its first call that needs one. */
void stand_in_context(void) { context = 1; }

/* For tests: bytes of device memory for new allocations of this process; whether the device shares memory. */
void stand_in_set(uint64_t bytes, int shares) { budget = bytes; supported = shares; }

/* For tests: bytes that this process has mapped. */
uint64_t stand_in_mapped(void) {
    uint64_t sum = 0;
    for (int i = 0; i < MANY; i++) sum += reserved[i].used && reserved[i].mapped ? reserved[i].size : 0;
    return sum;
}

CUresult cuDeviceGet(int *device, int ordinal) {
    if (!context) return NOT_INITIALIZED;
    return ordinal ? INVALID_DEVICE : (*device = 0, SUCCESS);
}

CUresult cuDeviceGetAttribute(int *value, int attribute, int device) {
    if (device || (attribute != 102 && attribute != 103)) return INVALID_VALUE;
    *value = attribute == 102 || supported;
    return SUCCESS;
}

CUresult cuDeviceGetUuid_v2(char *uuid, int device) { return device ? INVALID_DEVICE : (memset(uuid, 7, 16), SUCCESS); }

static int valid(const CUmemAllocationProp *p) {
    return p->type == 1 && p->requestedHandleTypes == 1 && p->location.type == 1 && p->location.id == 0 &&
           !p->win32HandleMetaData && !p->allocFlags.compressionType && !p->allocFlags.usage;
}

CUresult cuMemGetAllocationGranularity(size_t *unit, const CUmemAllocationProp *p, int option) {
    if (!valid(p) || option < 0 || option > 1) return INVALID_VALUE;
    *unit = UNIT;
    return SUCCESS;
}

static CUresult new_handle(uint64_t *handle, int fd, size_t size) {
    for (int i = 0; i < MANY; i++)
        if (!handles[i].used) {
            handles[i].fd = fd, handles[i].size = size, handles[i].used = 1;
            *handle = 1000 + i;
            return SUCCESS;
        }
    return OUT_OF_MEMORY;
}

static int index_of(uint64_t handle) {
    return handle >= 1000 && handle < 1000 + MANY && handles[handle - 1000].used ? (int)(handle - 1000) : -1;
}

CUresult cuMemCreate(uint64_t *handle, size_t size, const CUmemAllocationProp *p, uint64_t flags) {
    if (!context) return NOT_INITIALIZED;
    if (!valid(p) || !size || size % UNIT || flags) return INVALID_VALUE;
    if (size > budget) return OUT_OF_MEMORY;
    int fd = memfd_create("device memory", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, size)) return OUT_OF_MEMORY;
    void *at = mmap(NULL, size, PROT_WRITE, MAP_SHARED, fd, 0);
    memset(at, 0xA5, size);
    munmap(at, size);
    return new_handle(handle, fd, size);
}

CUresult cuMemRelease(uint64_t handle) {
    int i = index_of(handle);
    if (i < 0) return INVALID_VALUE;
    close(handles[i].fd);
    handles[i].used = 0;
    return SUCCESS;
}

CUresult cuMemExportToShareableHandle(int *fd, uint64_t handle, int type, uint64_t flags) {
    int i = index_of(handle);
    if (i < 0 || type != 1 || flags) return INVALID_VALUE;
    *fd = dup(handles[i].fd);
    return SUCCESS;
}

CUresult cuMemImportFromShareableHandle(uint64_t *handle, void *os_handle, int type) {
    struct stat status;
    int fd = (int)(intptr_t)os_handle;
    if (!context) return NOT_INITIALIZED;
    if (type != 1) return INVALID_VALUE;
    if (fstat(fd, &status) || status.st_size % UNIT || !status.st_size) return INVALID_HANDLE;
    return new_handle(handle, dup(fd), status.st_size);
}

CUresult cuMemAddressReserve(uint64_t *address, size_t size, size_t alignment, uint64_t wanted, uint64_t flags) {
    if (!size || size % UNIT || alignment || wanted || flags) return INVALID_VALUE;
    for (int i = 0; i < MANY; i++)
        if (!reserved[i].used) {
            char *at = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            reserved[i].address = at, reserved[i].size = size, reserved[i].mapped = 0, reserved[i].used = 1;
            *address = (uint64_t)at;
            return SUCCESS;
        }
    return OUT_OF_MEMORY;
}

static int range_of(uint64_t address, size_t size) {
    for (int i = 0; i < MANY; i++)
        if (reserved[i].used && (uint64_t)reserved[i].address == address && reserved[i].size == size) return i;
    return -1;
}

/* Without cuMemSetAccess, any access faults. */
CUresult cuMemMap(uint64_t address, size_t size, size_t offset, uint64_t handle, uint64_t flags) {
    int at = range_of(address, size), i = index_of(handle);
    if (at < 0 || i < 0 || offset || flags || reserved[at].mapped || handles[i].size != size) return INVALID_VALUE;
    mmap(reserved[at].address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, handles[i].fd, 0);
    reserved[at].mapped = 1;
    return SUCCESS;
}

CUresult cuMemSetAccess(uint64_t address, size_t size, const CUmemAccessDesc *access, size_t count) {
    int at = range_of(address, size);
    if (at < 0 || !reserved[at].mapped || count != 1 || access->location.type != 1 || access->location.id)
        return INVALID_VALUE;
    if (access->flags != 3) return INVALID_VALUE;
    return mprotect(reserved[at].address, size, PROT_READ | PROT_WRITE) ? INVALID_VALUE : SUCCESS;
}

CUresult cuMemUnmap(uint64_t address, size_t size) {
    int at = range_of(address, size);
    if (at < 0 || !reserved[at].mapped) return INVALID_VALUE;
    mmap(reserved[at].address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    reserved[at].mapped = 0;
    return SUCCESS;
}

CUresult cuMemAddressFree(uint64_t address, size_t size) {
    int at = range_of(address, size);
    if (at < 0 || reserved[at].mapped) return INVALID_VALUE;
    munmap(reserved[at].address, size);
    reserved[at].used = 0;
    return SUCCESS;
}
