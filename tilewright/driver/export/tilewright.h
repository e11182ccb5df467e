/* tilewright.h: runs packages that `tilewright export` wrote. C99 and C++; nothing but libc. For
   Linux, macOS and, with clang or gcc, Windows, where paths are UTF-8.

   In ONE source file, before any other include:

       #define TILEWRIGHT_IMPLEMENTATION
       #include "tilewright.h"

   Link with -ldl -pthread where the C library does not hold these. A program:

       tw_package *net;
       if (tw_open("net.twp", 0, &net)) { fprintf(stderr, "%s\n", tw_error_text()); return 1; }
       float x[3 * 8], y[3 * 4];
       int64_t in_shape[] = {3, 8}, out_shape[] = {3, 4};
       tw_tensor in = {x, TW_F32, 2, in_shape}, out = {y, TW_F32, 2, out_shape};
       if (tw_run(net, &in, 1, &out, 1, NULL)) fprintf(stderr, "%s\n", tw_error_text());
       tw_close(net);

   A package holds native code that runs in this process: open only what you trust.

   Memory of tensors is contiguous, row-major and aligned to its elements; outputs overlap nothing.
   Every function may be called from any thread, also several at once with one package, but
   tw_close of a package that another thread uses. Errors are codes; tw_error_text says more, for
   the calling thread. All packages of a process share one pool of threads. A forked child may go on
   with the packages of its parent. */

#ifndef TILEWRIGHT_H
#define TILEWRIGHT_H

#if defined(TILEWRIGHT_IMPLEMENTATION) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What functions give: 0, or one of these. */
enum {
  TW_OK = 0,
/* @codes@ */
};

/* The dtypes of tensors. */
enum {
  TW_F64 = 1, TW_F32, TW_F16, TW_BF16, TW_I64, TW_I32, TW_I16, TW_I8,
  TW_U64, TW_U32, TW_U16, TW_U8, TW_BOOL
};

/* For tw_open: compare the checksum of the weights too, which reads all of them. That of code is
   always compared, before any of it is mapped executable. */
#define TW_VERIFY_WEIGHTS 1u
/* For tw_open: read the weights to memory of this process, in large pages where the system has
   them. Opening takes longer, and calls that read many weights are a little faster. Without, they
   are mapped from the file when they are touched, and all processes that do so share them. */
#define TW_COPY_WEIGHTS 2u

#define TW_MAX_RANK 16

typedef struct tw_package tw_package;

/* A tensor of the caller's. `data` of inputs is only read. */
typedef struct tw_tensor {
  void *data;
  int dtype;
  int rank;
  const int64_t *shape;
} tw_tensor;

/* An input or output of a package. Where a size is symbolic, `shape` has -1; `sizes` has the text of
   every size, such as "8", "batch" or "2*length". */
typedef struct tw_description {
  const char *name;
  int dtype;
  int rank;
  const int64_t *shape;
  const char *const *sizes;
} tw_description;

/* Where the runtime's memory comes from. `allocate` gives NULL where there is none. */
typedef struct tw_allocator {
  void *(*allocate)(void *user, size_t bytes, size_t alignment);
  void (*release)(void *user, void *memory, size_t bytes);
  void *user;
} tw_allocator;

/* Opens a package: a folder, or a .twp file. Takes the best code that this processor can run. */
int tw_open(const char *path, unsigned flags, tw_package **package);
void tw_close(tw_package *package);

const tw_description *tw_inputs(const tw_package *package, size_t *count);
const tw_description *tw_outputs(const tw_package *package, size_t *count);
const char *tw_manifest(const tw_package *package); /* its JSON */
const char *tw_level(const tw_package *package);    /* the target whose code was taken */

/* The sizes of an output for inputs like these (their `data` is not read), and the bytes that a call
   needs to work in. `shape` has room for the output's rank. A size that data decides is the most that
   it may be. */
int tw_output_shape(const tw_package *package, const tw_tensor *inputs, size_t input_count,
                    size_t output, int64_t *shape);
int tw_workspace_bytes(const tw_package *package, const tw_tensor *inputs, size_t input_count,
                       size_t *bytes);

/* Computes the outputs. `workspace`: memory of tw_workspace_bytes, aligned to 64 bytes, that no
   other call uses meanwhile; or NULL: the package has its own, and keeps it for the next call. */
int tw_run(tw_package *package, const tw_tensor *inputs, size_t input_count,
           const tw_tensor *outputs, size_t output_count, void *workspace);

/* The same, and writes the sizes of the outputs to `shapes`: those of the first one's axes, then of
   the next. A package where data decides sizes of outputs ("counted" in its manifest) is run by this
   one. Outputs are given the shapes of tw_output_shape; a smaller result is at the beginning of its
   memory, contiguous. */
int tw_run_shapes(tw_package *package, const tw_tensor *inputs, size_t input_count,
                  const tw_tensor *outputs, size_t output_count, void *workspace, int64_t *shapes);

/* How many threads share the work of a call, the caller's included; at first as many as there are
   processors to run on. For all packages of the process, once one is open. */
int tw_set_threads(int count);
int tw_get_threads(void);

/* For all memory that is allocated from now on; NULL: the C library's again. Packages that are open
   keep the one that they were opened with. */
void tw_set_allocator(const tw_allocator *allocator);

/* What went wrong in this thread's last call that gave an error. */
const char *tw_error_text(void);

/* The name of a dtype ("f32"), and the bytes of an element. */
const char *tw_dtype_name(int dtype);
size_t tw_dtype_bytes(int dtype);

#ifdef __cplusplus
}
#endif

#endif /* TILEWRIGHT_H */

#ifdef TILEWRIGHT_IMPLEMENTATION
#ifndef TILEWRIGHT_IMPLEMENTED
#define TILEWRIGHT_IMPLEMENTED

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>
#else
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif
#ifdef __linux__
#include <sys/auxv.h>
#include <sys/syscall.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define TW__FORMAT 2 /* the newest */
#define TW__LINE 64
#define TW__SPIN 100000 /* nanoseconds that an idle thread waits before it sleeps */
#define TW__LARGE ((size_t)2 << 20)

/* ---- errors */

static const char *const tw__sentences[] = {
  "",
/* @sentences@ */
};

static __thread char tw__text[1024];

static int tw__fail(int code, ...) {
  va_list values;
  va_start(values, code);
  vsnprintf(tw__text, sizeof tw__text, tw__sentences[code], values);
  va_end(values);
  return code;
}

const char *tw_error_text(void) { return tw__text; }

/* ---- the system: files, memory, libraries, locks. Two times the same functions.

   tw__why: what went wrong in the call of the system before. tw__is_folder: 1, 0, or -1 where there
   is nothing. tw__open_path: a file to read, through
   links or not; or -1 with the reason. tw__map:
   maps a part of a file; what tw__unmap takes is in `base` and `bytes`. tw__copy_library: a library
   where no one else writes, `content`, to be checked; tw__drop_copy ends that. tw__load_library: of
   such a copy, so that what was checked is what is loaded; `kept` is what tw__unload takes. A pool
   stays for the whole process, and later libraries find its functions. */

#define TW__NONE ((intptr_t)-1)

typedef struct tw__copied {
  const unsigned char *content;
  size_t size;
  intptr_t file; /* that holds it, or TW__NONE */
  char path[4096];
} tw__copied;

typedef struct tw__library {
  void *handle;
  intptr_t kept;
} tw__library;

#ifdef _WIN32

typedef SRWLOCK tw__mutex;
#define TW__UNLOCKED SRWLOCK_INIT
static void tw__mutex_init(tw__mutex *m) { InitializeSRWLock(m); }
static void tw__mutex_end(tw__mutex *m) { (void)m; }
static void tw__acquire(tw__mutex *m) { AcquireSRWLockExclusive(m); }
static void tw__unlock(tw__mutex *m) { ReleaseSRWLockExclusive(m); }

static const char *tw__why(void) {
  static __thread char text[256];
  DWORD code = GetLastError();
  DWORD n = FormatMessageA(FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS, NULL, code, 0,
                           text, sizeof text, NULL);
  while (n && (text[n - 1] == '\r' || text[n - 1] == '\n' || text[n - 1] == '.')) text[--n] = 0;
  if (!n) snprintf(text, sizeof text, "error %lu of Windows", (unsigned long)code);
  return text;
}

static int tw__wide(const char *path, WCHAR *wide, int room) {
  return MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, wide, room) ? 0 : -1;
}

static int tw__is_folder(const char *path) {
  WCHAR wide[4096];
  DWORD facts = tw__wide(path, wide, 4096) ? INVALID_FILE_ATTRIBUTES : GetFileAttributesW(wide);
  if (facts == INVALID_FILE_ATTRIBUTES) return -1;
  return facts & FILE_ATTRIBUTE_DIRECTORY ? 1 : 0;
}

static intptr_t tw__open_path(const char *path, int links, int64_t *size, const char **why) {
  WCHAR wide[4096];
  BY_HANDLE_FILE_INFORMATION facts;
  const DWORD odd = FILE_ATTRIBUTE_DIRECTORY | FILE_ATTRIBUTE_REPARSE_POINT;
  HANDLE file = INVALID_HANDLE_VALUE;
  if (!tw__wide(path, wide, 4096))
    file = CreateFileW(wide, GENERIC_READ, FILE_SHARE_READ, NULL, OPEN_EXISTING,
                       links ? 0 : FILE_FLAG_OPEN_REPARSE_POINT, NULL);
  if (file == INVALID_HANDLE_VALUE) {
    *why = tw__why();
    return TW__NONE;
  }
  if (!GetFileInformationByHandle(file, &facts) || (!links && facts.dwFileAttributes & odd)) {
    CloseHandle(file);
    *why = "it is no file";
    return TW__NONE;
  }
  *size = (int64_t)((uint64_t)facts.nFileSizeHigh << 32 | facts.nFileSizeLow);
  return (intptr_t)file;
}

static void tw__close_path(intptr_t file) { CloseHandle((HANDLE)file); }

static int tw__read(intptr_t file, void *to, size_t size, int64_t offset) {
  char *at = (char *)to;
  while (size) {
    OVERLAPPED place;
    DWORD n = 0, wanted = size > (1u << 30) ? 1u << 30 : (DWORD)size;
    memset(&place, 0, sizeof place);
    place.Offset = (DWORD)((uint64_t)offset & 0xffffffffu);
    place.OffsetHigh = (DWORD)((uint64_t)offset >> 32);
    if (!ReadFile((HANDLE)file, at, wanted, &n, &place) || !n) return -1;
    at += n;
    offset += n;
    size -= n;
  }
  return 0;
}

static const unsigned char *tw__map(intptr_t file, int64_t offset, int64_t size, void **base,
                                    size_t *bytes) {
  SYSTEM_INFO facts;
  HANDLE mapping = CreateFileMappingW((HANDLE)file, NULL, PAGE_READONLY, 0, 0, NULL);
  int64_t first;
  GetSystemInfo(&facts);
  first = offset / facts.dwAllocationGranularity * facts.dwAllocationGranularity;
  if (!mapping) return NULL;
  *bytes = (size_t)(offset - first + size);
  *base = MapViewOfFile(mapping, FILE_MAP_READ, (DWORD)((uint64_t)first >> 32),
                        (DWORD)((uint64_t)first & 0xffffffffu), *bytes);
  CloseHandle(mapping);
  return *base ? (const unsigned char *)*base + (offset - first) : NULL;
}

static void tw__unmap(void *base, size_t bytes) {
  (void)bytes;
  UnmapViewOfFile(base);
}

static void *tw__allocate(void *user, size_t bytes, size_t alignment) {
  (void)user;
  return _aligned_malloc(bytes, alignment);
}

static void tw__release(void *user, void *memory, size_t bytes) {
  (void)user;
  (void)bytes;
  _aligned_free(memory);
}

#define TW__POOL L"libtilewright_pool.dll" /* by this name code takes its functions */

/* The file of a pool cannot be removed by the process that has it: later ones do that. Those that
   are in use stay, and so do folders of the last minute, whose library may not be loaded yet. */
static void tw__remove_old(const WCHAR *folder) {
  WCHAR path[2 * MAX_PATH];
  WIN32_FIND_DATAW found;
  FILETIME now;
  HANDLE search;
  swprintf(path, 2 * MAX_PATH, L"%lstilewright-*", folder);
  search = FindFirstFileW(path, &found);
  if (search == INVALID_HANDLE_VALUE) return;
  GetSystemTimeAsFileTime(&now);
  do {
    uint64_t made = (uint64_t)found.ftCreationTime.dwHighDateTime << 32;
    uint64_t here = (uint64_t)now.dwHighDateTime << 32 | now.dwLowDateTime;
    made |= found.ftCreationTime.dwLowDateTime;
    if (!(found.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY) || here < made + 600000000u) continue;
    swprintf(path, 2 * MAX_PATH, L"%ls%ls\\%ls", folder, found.cFileName, TW__POOL);
    DeleteFileW(path);
    *wcsrchr(path, L'\\') = 0;
    RemoveDirectoryW(path);
  } while (FindNextFileW(search, &found));
  FindClose(search);
}

static void tw__drop_copy(tw__copied *x) {
  free((void *)x->content);
  x->content = NULL;
}

static int tw__copy_library(intptr_t from, int64_t offset, size_t size, tw__copied *x) {
  unsigned char *content = (unsigned char *)malloc(size ? size : 1);
  x->file = TW__NONE;
  x->size = size;
  x->content = content;
  if (content && !tw__read(from, content, size, offset)) return 0;
  tw__drop_copy(x);
  return -1;
}

/* A file of its own in a folder of its own, which is removed when the library is unloaded. */
static int tw__load_library(tw__copied *x, int pool, tw__library *made, const char **why) {
  static volatile LONG count;
  WCHAR folder[MAX_PATH + 1], path[MAX_PATH + 64];
  HANDLE file;
  DWORD n = 0;
  size_t end;
  BOOL whole;
  if (!GetTempPathW(MAX_PATH - 64, folder)) {
    *why = tw__why();
    return -1;
  }
  if (pool) tw__remove_old(folder);
  swprintf(path, MAX_PATH + 64, L"%lstilewright-%lu-%lu-%ld", folder,
           (unsigned long)GetCurrentProcessId(), (unsigned long)GetTickCount(),
           (long)InterlockedIncrement(&count));
  whole = CreateDirectoryW(path, NULL);
  end = wcslen(path);
  swprintf(path + end, MAX_PATH + 64 - end, L"\\%ls", pool ? TW__POOL : L"code.dll");
  file = CreateFileW(path, GENERIC_WRITE, 0, NULL, CREATE_NEW, FILE_ATTRIBUTE_TEMPORARY, NULL);
  whole = whole && file != INVALID_HANDLE_VALUE && x->size < 1u << 31 &&
          WriteFile(file, x->content, (DWORD)x->size, &n, NULL) && n == x->size;
  if (!whole) *why = tw__why();
  if (file != INVALID_HANDLE_VALUE) CloseHandle(file);
  made->handle = whole ? (void *)LoadLibraryW(path) : NULL;
  if (whole && !made->handle) *why = tw__why();
  made->kept = TW__NONE;
  if (made->handle) {
    WCHAR *own = (WCHAR *)malloc((wcslen(path) + 1) * sizeof *own);
    if (own) {
      wcscpy(own, path);
      made->kept = (intptr_t)own;
    }
    return 0;
  }
  DeleteFileW(path);
  path[end] = 0;
  RemoveDirectoryW(path);
  return -1;
}

static void tw__unload(tw__library *x) {
  if (x->handle) FreeLibrary((HMODULE)x->handle);
  if (x->kept != TW__NONE) {
    WCHAR *path = (WCHAR *)x->kept;
    DeleteFileW(path);
    *wcsrchr(path, L'\\') = 0;
    RemoveDirectoryW(path);
    free(path);
  }
}

static void *tw__process(void) { return (void *)GetModuleHandleW(TW__POOL); }

static int tw__function(void *library, const char *name, void *function, size_t size) {
  FARPROC found = library ? GetProcAddress((HMODULE)library, name) : NULL;
  if (!found) return -1;
  memcpy(function, &found, size);
  return 0;
}

static int tw__processors(void) {
  DWORD count = GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
  return count < 1 ? 1 : count > 1024 ? 1024 : (int)count;
}

static void tw__in_children(void (*reset)(void)) { (void)reset; }

#else

typedef pthread_mutex_t tw__mutex;
#define TW__UNLOCKED PTHREAD_MUTEX_INITIALIZER
static void tw__mutex_init(tw__mutex *m) { pthread_mutex_init(m, NULL); }
static void tw__mutex_end(tw__mutex *m) { pthread_mutex_destroy(m); }
static void tw__acquire(tw__mutex *m) { pthread_mutex_lock(m); }
static void tw__unlock(tw__mutex *m) { pthread_mutex_unlock(m); }

static const char *tw__why(void) { return strerror(errno); }

static int tw__is_folder(const char *path) {
  struct stat facts;
  if (stat(path, &facts)) return -1;
  return S_ISDIR(facts.st_mode) ? 1 : 0;
}

static intptr_t tw__open_path(const char *path, int links, int64_t *size, const char **why) {
  struct stat facts;
  int file = open(path, O_RDONLY | O_CLOEXEC | (links ? 0 : O_NOFOLLOW));
  if (file < 0) {
    *why = tw__why();
    return TW__NONE;
  }
  if (fstat(file, &facts) || !(links || S_ISREG(facts.st_mode))) {
    close(file);
    *why = "it is no file";
    return TW__NONE;
  }
  *size = (int64_t)facts.st_size;
  return file;
}

static void tw__close_path(intptr_t file) { close((int)file); }

static int tw__read(intptr_t file, void *to, size_t size, int64_t offset) {
  char *at = (char *)to;
  while (size) {
    ssize_t n = pread((int)file, at, size, (off_t)offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return -1;
    at += n;
    offset += n;
    size -= (size_t)n;
  }
  return 0;
}

static const unsigned char *tw__map(intptr_t file, int64_t offset, int64_t size, void **base,
                                    size_t *bytes) {
  int64_t page = (int64_t)sysconf(_SC_PAGESIZE), first = offset / page * page;
  *bytes = (size_t)(offset - first + size);
  *base = mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE, (int)file, (off_t)first);
  if (*base != MAP_FAILED) return (const unsigned char *)*base + (offset - first);
  *base = NULL;
  return NULL;
}

static void tw__unmap(void *base, size_t bytes) { munmap(base, bytes); }

static void *tw__allocate(void *user, size_t bytes, size_t alignment) {
  void *memory = NULL;
  size_t large = bytes >= TW__LARGE ? TW__LARGE : alignment;
  (void)user;
  if (posix_memalign(&memory, large, bytes)) return NULL;
#ifdef MADV_HUGEPAGE
  /* The last page is large only if most of it is used. */
  if (bytes >= TW__LARGE)
    madvise(memory, (bytes + TW__LARGE / 2) / TW__LARGE * TW__LARGE, MADV_HUGEPAGE);
#endif
  return memory;
}

static void tw__release(void *user, void *memory, size_t bytes) {
  (void)user;
  (void)bytes;
  free(memory);
}

static void tw__hide_copy(tw__copied *x) {
  if (x->content) munmap((void *)x->content, x->size);
  x->content = NULL;
}

static void tw__drop_copy(tw__copied *x) {
  int reason = errno;
  tw__hide_copy(x);
  if (x->path[0] && strncmp(x->path, "/proc/", 6)) unlink(x->path);
  if (x->file != TW__NONE) close((int)x->file);
  x->file = TW__NONE;
  errno = reason;
}

#ifdef MAP_POPULATE
#define TW__ALL_PAGES MAP_POPULATE
#else
#define TW__ALL_PAGES 0
#endif

/* A file of this process, in memory where the system has such files. It is written from a mapping
   of the package and mapped to be read: new memory for it would be a page fault for each page. */
static int tw__copy_library(intptr_t from, int64_t offset, size_t size, tw__copied *x) {
  size_t done = 0, bytes = 0;
  void *base = NULL, *own = MAP_FAILED;
  const unsigned char *source = tw__map(from, offset, (int64_t)size, &base, &bytes);
  int file = -1;
  x->path[0] = 0;
  x->content = NULL;
  x->size = size;
#ifdef SYS_memfd_create
  file = (int)syscall(SYS_memfd_create, "tilewright", 1u | 16u); /* closed on exec, executable */
  if (file < 0) file = (int)syscall(SYS_memfd_create, "tilewright", 1u);
  if (file >= 0) snprintf(x->path, sizeof x->path, "/proc/self/fd/%d", file);
#endif
  if (file < 0) {
    const char *folder = getenv("TMPDIR");
    snprintf(x->path, sizeof x->path, "%s/tilewright-XXXXXX", folder && *folder ? folder : "/tmp");
    if ((file = mkstemp(x->path)) < 0) x->path[0] = 0;
  }
  x->file = file < 0 ? TW__NONE : file;
  while (source && file >= 0 && done < size) {
    ssize_t n = write(file, source + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += (size_t)n;
  }
  if (base) tw__unmap(base, bytes);
  if (source && file >= 0 && done == size)
    own = mmap(NULL, size, PROT_READ, MAP_SHARED | TW__ALL_PAGES, file, 0);
  if (own == MAP_FAILED) {
    tw__drop_copy(x);
    return -1;
  }
  x->content = (const unsigned char *)own;
  return 0;
}

/* The loader knows a library by its path, so the descriptor stays open as long as it is loaded. */
static int tw__load_library(tw__copied *x, int pool, tw__library *made, const char **why) {
  tw__hide_copy(x);
  made->handle = dlopen(x->path, RTLD_NOW | (pool ? RTLD_GLOBAL : RTLD_LOCAL));
  if (!made->handle) {
    *why = dlerror();
    if (!*why) *why = "no reason is given";
  }
  made->kept = made->handle ? x->file : TW__NONE;
  if (made->handle) x->file = TW__NONE;
  return made->handle ? 0 : -1;
}

static void tw__unload(tw__library *x) {
  if (x->handle) dlclose(x->handle);
  if (x->kept != TW__NONE) close((int)x->kept);
}

static void *tw__process(void) { return dlopen(NULL, RTLD_NOW); }

static int tw__function(void *library, const char *name, void *function, size_t size) {
  void *found = library ? dlsym(library, name) : NULL;
  if (!found) return -1;
  memcpy(function, &found, size);
  return 0;
}

static int tw__processors(void) {
#if defined(__linux__)
  unsigned char mask[1024];
  long n = syscall(SYS_sched_getaffinity, 0, sizeof mask, mask), k;
  int count = 0;
  for (k = 0; k < 8 * n; k++) count += mask[k / 8] >> (k % 8) & 1;
  if (count > 0) return count > 1024 ? 1024 : count;
#endif
  {
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online < 1 ? 1 : online > 1024 ? 1024 : (int)online;
  }
}

static void tw__in_children(void (*reset)(void)) { pthread_atfork(NULL, NULL, reset); }

#endif

/* ---- memory */

static const tw_allocator tw__plain = {tw__allocate, tw__release, NULL};
static tw_allocator tw__allocator = {tw__allocate, tw__release, NULL};
static tw__mutex tw__lock = TW__UNLOCKED;

void tw_set_allocator(const tw_allocator *allocator) {
  tw__acquire(&tw__lock);
  tw__allocator = allocator ? *allocator : tw__plain;
  tw__unlock(&tw__lock);
}

/* ---- dtypes */

static const struct {
  const char *name;
  size_t bytes;
} tw__dtypes[] = {
  {"", 0},    {"f64", 8}, {"f32", 4}, {"f16", 2}, {"bf16", 2}, {"i64", 8}, {"i32", 4},
  {"i16", 2}, {"i8", 1},  {"u64", 8}, {"u32", 4}, {"u16", 2},  {"u8", 1},  {"bool", 1},
};

static int tw__known(int dtype) { return dtype >= TW_F64 && dtype <= TW_BOOL; }

const char *tw_dtype_name(int dtype) {
  return tw__known(dtype) ? tw__dtypes[dtype].name : "an unknown dtype";
}

size_t tw_dtype_bytes(int dtype) { return tw__known(dtype) ? tw__dtypes[dtype].bytes : 0; }

/* ---- checksums: BLAKE2b of RFC 7693, with 32 bytes of result; and BLAKE2bp, in four lanes */

static const uint64_t tw__start[8] = {
  0x6a09e667f3bcc908u, 0xbb67ae8584caa73bu, 0x3c6ef372fe94f82bu, 0xa54ff53a5f1d36f1u,
  0x510e527fade682d1u, 0x9b05688c2b3e6c1fu, 0x1f83d9abfb41bd6bu, 0x5be0cd19137e2179u,
};

#define TW__TURN(x, n) (((x) >> (n)) | ((x) << (64 - (n))))
#define TW__MIX(a, b, c, d, x, y)                                                        \
  do {                                                                                   \
    a += b + (x); d ^= a; d = TW__TURN(d, 32); c += d; b ^= c; b = TW__TURN(b, 24);      \
    a += b + (y); d ^= a; d = TW__TURN(d, 16); c += d; b ^= c; b = TW__TURN(b, 63);      \
  } while (0)

/* The words of a block in the order in which a round mixes them in. */
#define TW__ROUND(MIX, a, b, c, d, e, f, g, h_, i_, j, k, l, m_, n, o, p)   \
  do {                                                                      \
    MIX(v0, v4, v8, v12, m[a], m[b]);                                       \
    MIX(v1, v5, v9, v13, m[c], m[d]);                                       \
    MIX(v2, v6, v10, v14, m[e], m[f]);                                      \
    MIX(v3, v7, v11, v15, m[g], m[h_]);                                     \
    MIX(v0, v5, v10, v15, m[i_], m[j]);                                     \
    MIX(v1, v6, v11, v12, m[k], m[l]);                                      \
    MIX(v2, v7, v8, v13, m[m_], m[n]);                                      \
    MIX(v3, v4, v9, v14, m[o], m[p]);                                       \
  } while (0)
#define TW__ROUNDS(MIX)                                                     \
  do {                                                                      \
    TW__ROUND(MIX, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);   \
    TW__ROUND(MIX, 14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3);   \
    TW__ROUND(MIX, 11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4);   \
    TW__ROUND(MIX, 7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8);   \
    TW__ROUND(MIX, 9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13);   \
    TW__ROUND(MIX, 2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9);   \
    TW__ROUND(MIX, 12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11);   \
    TW__ROUND(MIX, 13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10);   \
    TW__ROUND(MIX, 6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5);   \
    TW__ROUND(MIX, 10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0);   \
    TW__ROUND(MIX, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);   \
    TW__ROUND(MIX, 14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3);   \
  } while (0)

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define TW__LITTLE 1
#else
#define TW__LITTLE 0
#endif

enum { TW__MORE, TW__LAST, TW__OF_TREE }; /* is it the last block; and of the last node? */

/* One variable for each word: compilers keep them in registers even where they optimize little. */
static void tw__compress(uint64_t *h, const unsigned char *block, uint64_t count, int last) {
  uint64_t m[16], v0 = h[0], v1 = h[1], v2 = h[2], v3 = h[3], v4 = h[4], v5 = h[5], v6 = h[6];
  uint64_t v7 = h[7], v8 = tw__start[0], v9 = tw__start[1], v10 = tw__start[2], v11 = tw__start[3];
  uint64_t v12 = tw__start[4] ^ count, v13 = tw__start[5], v14 = tw__start[6], v15 = tw__start[7];
  int i;
  if (last) v14 = ~v14;
  if (last == TW__OF_TREE) v15 = ~v15;
  if (TW__LITTLE) memcpy(m, block, sizeof m);
  else for (i = 0; i < 16; i++, block += 8)
    m[i] = (uint64_t)block[0] | (uint64_t)block[1] << 8 | (uint64_t)block[2] << 16 |
           (uint64_t)block[3] << 24 | (uint64_t)block[4] << 32 | (uint64_t)block[5] << 40 |
           (uint64_t)block[6] << 48 | (uint64_t)block[7] << 56;
  TW__ROUNDS(TW__MIX);
  h[0] ^= v0 ^ v8;
  h[1] ^= v1 ^ v9;
  h[2] ^= v2 ^ v10;
  h[3] ^= v3 ^ v11;
  h[4] ^= v4 ^ v12;
  h[5] ^= v5 ^ v13;
  h[6] ^= v6 ^ v14;
  h[7] ^= v7 ^ v15;
}

/* Is this the checksum, in 64 hexadecimal digits? */
static int tw__sum_is(const unsigned char *data, size_t size, const char *digits) {
  uint64_t h[8];
  unsigned char last[128] = {0};
  char shown[65];
  size_t at = 0;
  int i;
  for (i = 0; i < 8; i++) h[i] = tw__start[i];
  h[0] ^= 0x01010020u;
  for (; size - at > 128; at += 128) tw__compress(h, data + at, (uint64_t)at + 128, TW__MORE);
  if (size) memcpy(last, data + at, size - at);
  tw__compress(h, last, (uint64_t)size, TW__LAST);
  for (i = 0; i < 32; i++)
    snprintf(shown + 2 * i, 3, "%02x", (unsigned)(h[i / 8] >> 8 * (i % 8) & 255));
  return strcmp(shown, digits) == 0;
}

/* By x86's vectors: the next `count` blocks of each of four lanes, which take turns. */
#if defined(__x86_64__)
#define TW__VECTOR_TEST "cpuid:1:0:ecx:27 cpuid:7:0:ebx:5 xcr0:6"
#define TW__VECTORS __attribute__((target("avx2")))

typedef __m256i tw__words; /* the same word of the four lanes */

#define TW__ADD(a, b) _mm256_add_epi64(a, b)
#define TW__XOR(a, b) _mm256_xor_si256(a, b)
#define TW__ALL(word) _mm256_set1_epi64x((long long)(word))
#define TW__MIX_WORDS(a, b, c, d, x, y)                                                  \
  do {                                                                                   \
    a = TW__ADD(TW__ADD(a, b), x);                                                       \
    d = _mm256_shuffle_epi32(TW__XOR(d, a), 0xb1);                                       \
    c = TW__ADD(c, d);                                                                   \
    b = _mm256_shuffle_epi8(TW__XOR(b, c), turn24);                                      \
    a = TW__ADD(TW__ADD(a, b), y);                                                       \
    d = _mm256_shuffle_epi8(TW__XOR(d, a), turn16);                                      \
    c = TW__ADD(c, d);                                                                   \
    b = TW__XOR(b, c);                                                                   \
    b = _mm256_or_si256(_mm256_srli_epi64(b, 63), TW__ADD(b, b));                        \
  } while (0)

/* Four words of each lane, which lie `step` words apart, as four vectors. */
TW__VECTORS static void tw__turned(tw__words *to, const void *lanes, size_t step) {
  const unsigned char *from = (const unsigned char *)lanes;
  tw__words a = _mm256_loadu_si256((const tw__words *)(const void *)from);
  tw__words b = _mm256_loadu_si256((const tw__words *)(const void *)(from + 8 * step));
  tw__words c = _mm256_loadu_si256((const tw__words *)(const void *)(from + 16 * step));
  tw__words d = _mm256_loadu_si256((const tw__words *)(const void *)(from + 24 * step));
  tw__words even = _mm256_unpacklo_epi64(a, b), odd = _mm256_unpackhi_epi64(a, b);
  tw__words even2 = _mm256_unpacklo_epi64(c, d), odd2 = _mm256_unpackhi_epi64(c, d);
  to[0] = _mm256_permute2x128_si256(even, even2, 0x20);
  to[1] = _mm256_permute2x128_si256(odd, odd2, 0x20);
  to[2] = _mm256_permute2x128_si256(even, even2, 0x31);
  to[3] = _mm256_permute2x128_si256(odd, odd2, 0x31);
}

TW__VECTORS static void tw__compress_lanes(uint64_t h[4][8], const unsigned char *stripe,
                                           size_t count) {
  const tw__words turn24 = _mm256_setr_epi8(
      3, 4, 5, 6, 7, 0, 1, 2, 11, 12, 13, 14, 15, 8, 9, 10, 3, 4, 5, 6, 7, 0, 1, 2, 11, 12, 13, 14,
      15, 8, 9, 10);
  const tw__words turn16 = _mm256_setr_epi8(
      2, 3, 4, 5, 6, 7, 0, 1, 10, 11, 12, 13, 14, 15, 8, 9, 2, 3, 4, 5, 6, 7, 0, 1, 10, 11, 12, 13,
      14, 15, 8, 9);
  tw__words now[8], m[16];
  uint64_t bytes = 0;
  int i;
  tw__turned(now, h[0], 8);
  tw__turned(now + 4, h[0] + 4, 8);
  for (; count; count--, stripe += 512) {
    tw__words v0 = now[0], v1 = now[1], v2 = now[2], v3 = now[3], v4 = now[4], v5 = now[5];
    tw__words v6 = now[6], v7 = now[7], v8 = TW__ALL(tw__start[0]), v9 = TW__ALL(tw__start[1]);
    tw__words v10 = TW__ALL(tw__start[2]), v11 = TW__ALL(tw__start[3]);
    tw__words v12 = TW__ALL(tw__start[4] ^ (bytes += 128)), v13 = TW__ALL(tw__start[5]);
    tw__words v14 = TW__ALL(tw__start[6]), v15 = TW__ALL(tw__start[7]);
    for (i = 0; i < 16; i += 4) tw__turned(m + i, stripe + 8 * i, 16);
    TW__ROUNDS(TW__MIX_WORDS);
    now[0] = TW__XOR(now[0], TW__XOR(v0, v8));
    now[1] = TW__XOR(now[1], TW__XOR(v1, v9));
    now[2] = TW__XOR(now[2], TW__XOR(v2, v10));
    now[3] = TW__XOR(now[3], TW__XOR(v3, v11));
    now[4] = TW__XOR(now[4], TW__XOR(v4, v12));
    now[5] = TW__XOR(now[5], TW__XOR(v5, v13));
    now[6] = TW__XOR(now[6], TW__XOR(v6, v14));
    now[7] = TW__XOR(now[7], TW__XOR(v7, v15));
  }
  for (i = 0; i < 8; i++) {
    uint64_t each[4];
    _mm256_storeu_si256((tw__words *)(void *)each, now[i]);
    h[0][i] = each[0], h[1][i] = each[1], h[2][i] = each[2], h[3][i] = each[3];
  }
}
#endif

static void tw__tree(uint64_t *h, unsigned node, unsigned level) {
  int i;
  for (i = 0; i < 8; i++) h[i] = tw__start[i];
  h[0] ^= 0x02040040u; /* 64 bytes of result, four lanes, two levels */
  h[1] ^= node;
  h[2] ^= 0x4000u | level;
}

/* The bytes of a lane: its blocks are `lane`, `lane` + 4 and so on. */
static size_t tw__lane_bytes(size_t size, size_t lane) {
  size_t rest = size % 512 > 128 * lane ? size % 512 - 128 * lane : 0;
  return size / 512 * 128 + (rest < 128 ? rest : 128);
}

/* Is this the checksum of BLAKE2bp, in 128 hexadecimal digits? It is the sum of the lanes' sums,
   which `vectors` compute at the same time, less than half as long as the plain one. */
static int tw__lanes_are(const unsigned char *data, size_t size, const char *digits, int vectors) {
  uint64_t lanes[4][8], h[8];
  unsigned char sums[256], last[128];
  char shown[129];
  size_t done = 0, bytes, at, k;
  int i;
  for (k = 0; k < 4; k++) tw__tree(lanes[k], (unsigned)k, 0);
#if defined(__x86_64__)
  if (vectors && tw__lane_bytes(size, 3)) {
    done = (tw__lane_bytes(size, 3) - 1) / 128; /* the last block of each lane is another matter */
    tw__compress_lanes(lanes, data, done);
  }
#endif
  (void)vectors;
  for (k = 0; k < 4; k++) {
    bytes = tw__lane_bytes(size, k);
    for (at = 128 * done; bytes > at + 128; at += 128)
      tw__compress(lanes[k], data + 4 * at + 128 * k, (uint64_t)at + 128, TW__MORE);
    memset(last, 0, sizeof last);
    if (bytes > at) memcpy(last, data + 4 * at + 128 * k, bytes - at);
    tw__compress(lanes[k], last, (uint64_t)bytes, k == 3 ? TW__OF_TREE : TW__LAST);
    for (i = 0; i < 64; i++) sums[64 * k + (size_t)i] = (unsigned char)(lanes[k][i / 8] >> 8 * (i % 8));
  }
  tw__tree(h, 0, 1);
  tw__compress(h, sums, 128, TW__MORE);
  tw__compress(h, sums + 128, 256, TW__OF_TREE);
  for (i = 0; i < 64; i++)
    snprintf(shown + 2 * i, 3, "%02x", (unsigned)(h[i / 8] >> 8 * (i % 8) & 255));
  return strcmp(shown, digits) == 0;
}

/* ---- JSON: values as an array of nodes, each with its first child and its next neighbour */

enum { TW__NULL, TW__FALSE, TW__TRUE, TW__NUMBER, TW__STRING, TW__LIST, TW__OBJECT };

typedef struct tw__node {
  int type, child, next; /* -1: none */
  int64_t number;
  const char *text; /* of a string */
  const char *key;  /* in an object */
} tw__node;

typedef struct tw__json {
  char *at;
  tw__node *nodes;
  int count, room;
  const char *why;
} tw__json;

static void tw__space(tw__json *j) {
  while (*j->at == ' ' || *j->at == '\t' || *j->at == '\n' || *j->at == '\r') j->at++;
}

static int tw__bad(tw__json *j, const char *why) {
  if (!j->why) j->why = why;
  return -1;
}

static int tw__hex(const char *p) {
  int k, value = 0;
  for (k = 0; k < 4; k++) {
    int c = p[k], digit;
    if (c >= '0' && c <= '9') digit = c - '0';
    else if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
    else if (c >= 'A' && c <= 'F') digit = c - 'A' + 10;
    else return -1;
    value = value * 16 + digit;
  }
  return value;
}

static char *tw__utf8(char *out, unsigned c) {
  if (c < 0x80) { *out++ = (char)c; return out; }
  if (c < 0x800) *out++ = (char)(0xc0 | c >> 6);
  else {
    if (c < 0x10000) *out++ = (char)(0xe0 | c >> 12);
    else { *out++ = (char)(0xf0 | c >> 18); *out++ = (char)(0x80 | (c >> 12 & 63)); }
    *out++ = (char)(0x80 | (c >> 6 & 63));
  }
  *out++ = (char)(0x80 | (c & 63));
  return out;
}

static int tw__is_utf8(const char *text, size_t size) {
  const unsigned char *p = (const unsigned char *)text, *end = p + size;
  while (p < end) {
    unsigned c = *p++;
    int more = c < 0x80 ? 0 : c < 0xc2 ? -1 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : c < 0xf5 ? 3 : -1;
    if (more < 0 || end - p < more) return 0;
    if (more) {
      unsigned value = c & (0x3fu >> more);
      int k;
      for (k = 0; k < more; k++) {
        if ((*p & 0xc0) != 0x80) return 0;
        value = value << 6 | (*p++ & 0x3fu);
      }
      if (more == 2 && (value < 0x800 || (value >= 0xd800 && value < 0xe000))) return 0;
      if (more == 3 && (value < 0x10000 || value > 0x10ffff)) return 0;
    }
  }
  return 1;
}

/* A string, written over its own text. */
static const char *tw__string(tw__json *j) {
  char *begin = j->at + 1, *in = begin, *out = begin;
  for (;; ) {
    unsigned char c = (unsigned char)*in++;
    if (c == '"') break;
    if (c < 32) { tw__bad(j, "its manifest is not JSON: a string has no end"); return NULL; }
    if (c != '\\') { *out++ = (char)c; continue; }
    c = (unsigned char)*in++;
    if (c == 'u') {
      int a = tw__hex(in), b;
      if (a < 1) { tw__bad(j, "its manifest is not JSON: a character is malformed"); return NULL; }
      in += 4;
      if (a >= 0xd800 && a < 0xdc00 && in[0] == '\\' && in[1] == 'u' &&
          (b = tw__hex(in + 2)) >= 0xdc00 && b < 0xe000) {
        out = tw__utf8(out, 0x10000u + (((unsigned)a - 0xd800) << 10) + ((unsigned)b - 0xdc00));
        in += 6;
      } else if (a >= 0xd800 && a < 0xe000) {
        tw__bad(j, "its manifest is not JSON: a character is malformed");
        return NULL;
      } else out = tw__utf8(out, (unsigned)a);
      continue;
    }
    switch (c) {
      case '"': case '\\': case '/': *out++ = (char)c; break;
      case 'b': *out++ = '\b'; break;
      case 'f': *out++ = '\f'; break;
      case 'n': *out++ = '\n'; break;
      case 'r': *out++ = '\r'; break;
      case 't': *out++ = '\t'; break;
      default: tw__bad(j, "its manifest is not JSON: a character is malformed"); return NULL;
    }
  }
  *out = 0;
  j->at = in;
  return begin;
}

static int tw__value(tw__json *j, int depth);

static int tw__items(tw__json *j, int self, int depth) {
  int object = *j->at == '{', last = -1;
  char end = object ? '}' : ']';
  j->at++;
  tw__space(j);
  if (*j->at == end) { j->at++; return self; }
  for (;;) {
    const char *key = NULL;
    int item;
    if (object) {
      tw__space(j);
      if (*j->at != '"') return tw__bad(j, "its manifest is not JSON: a key is missing");
      if (!(key = tw__string(j))) return -1;
      tw__space(j);
      if (*j->at++ != ':') return tw__bad(j, "its manifest is not JSON: a colon is missing");
    }
    if ((item = tw__value(j, depth + 1)) < 0) return -1;
    j->nodes[item].key = key;
    if (last < 0) j->nodes[self].child = item;
    else j->nodes[last].next = item;
    last = item;
    tw__space(j);
    if (*j->at == ',') { j->at++; continue; }
    if (*j->at != end) return tw__bad(j, "its manifest is not JSON: a list has no end");
    j->at++;
    return self;
  }
}

static int tw__word(tw__json *j, const char *word) {
  size_t n = strlen(word);
  if (strncmp(j->at, word, n)) return tw__bad(j, "its manifest is not JSON: an unknown word");
  j->at += n;
  return 0;
}

static int tw__value(tw__json *j, int depth) {
  int self = j->count;
  tw__node *n;
  if (depth > 64) return tw__bad(j, "its manifest is nested too deeply");
  if (self == j->room) return tw__bad(j, "its manifest has too many values");
  j->count++;
  n = &j->nodes[self];
  n->child = n->next = -1;
  n->number = 0;
  n->text = n->key = NULL;
  tw__space(j);
  switch (*j->at) {
    case '{': n->type = TW__OBJECT; return tw__items(j, self, depth);
    case '[': n->type = TW__LIST; return tw__items(j, self, depth);
    case '"':
      n->type = TW__STRING;
      n->text = tw__string(j);
      return n->text ? self : -1;
    case 't': n->type = TW__TRUE; return tw__word(j, "true") ? -1 : self;
    case 'f': n->type = TW__FALSE; return tw__word(j, "false") ? -1 : self;
    case 'n': n->type = TW__NULL; return tw__word(j, "null") ? -1 : self;
    default: {
      char *end;
      n->type = TW__NUMBER;
      if (*j->at != '-' && (*j->at < '0' || *j->at > '9'))
        return tw__bad(j, "its manifest is not JSON: a value is missing");
      errno = 0;
      n->number = strtoll(j->at, &end, 10);
      if (end == j->at || errno) return tw__bad(j, "its manifest is not JSON: an odd number");
      if (*end == '.' || *end == 'e' || *end == 'E') strtod(j->at, &end);
      j->at = end;
      return self;
    }
  }
}

/* ---- files of a package: of a folder, or stored in a zip */

typedef struct tw__file {
  intptr_t fd;
  int64_t offset, size;
} tw__file;

typedef struct tw__dim {
  const char *name;
  int64_t low, high;
  int input, axis; /* whose size it is */
} tw__dim;

struct tw_package {
  tw_allocator memory;
  char *path, *manifest, *strings; /* the manifest as it is, and with its strings cut apart */
  size_t manifest_bytes;
  tw__node *nodes;
  size_t nodes_bytes;
  intptr_t zip; /* TW__NONE: a folder */
  int64_t directory, directory_bytes, zip_bytes;
  unsigned char *table; /* the zip's, while the package is opened */
  int vectors;          /* has the processor those that compute checksums faster? */
  tw_description *tensors; /* inputs, then outputs */
  size_t tensors_bytes, input_count, output_count, extents;
  void *details;
  size_t details_bytes;
  tw__dim *dims;
  size_t dim_count;
  int checks; /* the node of their list */
  const char *level;
  tw__library code;
  void *map;
  size_t map_bytes;
  const unsigned char *weights;
  void *copy; /* of the weights, in memory */
  size_t copy_bytes;
  int64_t (*code_workspace)(const int64_t *);
  void (*code_shapes)(const int64_t *, int64_t *);
  int32_t (*code_run)(const void *, const void *const *, void *const *, const int64_t *, void *);
  void (*code_results)(const int64_t *, const void *, int64_t *); /* NULL: inputs decide all sizes */
  tw__mutex lock;
  void *spare; /* the workspace of the call before */
  size_t spare_bytes;
};

static void *tw__get(tw_package *p, size_t bytes) {
  void *memory = p->memory.allocate(p->memory.user, bytes ? bytes : 1, TW__LINE);
  if (!memory) tw__fail(TW_ERROR_MEMORY, (long long)bytes);
  return memory;
}

static void tw__give(tw_package *p, void *memory, size_t bytes) {
  if (memory) p->memory.release(p->memory.user, memory, bytes ? bytes : 1);
}

static uint64_t tw__little(const unsigned char *p, int bytes) {
  uint64_t value = 0;
  while (bytes--) value = value << 8 | p[bytes];
  return value;
}

/* The table of a zip, which lies before its end; a comment may follow that. */
static int tw__open_zip(tw_package *p) {
  unsigned char tail[22 + 65535], wide[56];
  size_t n, k, most;
  int whole;
  const char *no_zip = "it is neither a folder nor a whole zip";
  for (most = 1024;; most = sizeof tail) { /* all of it only if it is needed: pages are costly */
    n = p->zip_bytes < (int64_t)most ? (size_t)p->zip_bytes : most;
    if (n < 22 || tw__read(p->zip, tail, n, p->zip_bytes - (int64_t)n))
      return tw__fail(TW_ERROR_PACKAGE, p->path, no_zip);
    for (k = n - 22; k && tw__little(tail + k, 4) != 0x06054b50u; k--) continue;
    whole = n < most || most == sizeof tail;
    if (tw__little(tail + k, 4) == 0x06054b50u && (k >= 20 || whole)) break;
    if (whole) return tw__fail(TW_ERROR_PACKAGE, p->path, no_zip);
  }
  p->directory_bytes = (int64_t)tw__little(tail + k + 12, 4);
  p->directory = (int64_t)tw__little(tail + k + 16, 4);
  if (p->directory == 0xffffffffLL && k >= 20 && tw__little(tail + k - 20, 4) == 0x07064b50u) {
    int64_t at = (int64_t)tw__little(tail + k - 12, 8);
    if (at < 0 || tw__read(p->zip, wide, sizeof wide, at) || tw__little(wide, 4) != 0x06064b50u)
      return tw__fail(TW_ERROR_PACKAGE, p->path, no_zip);
    p->directory_bytes = (int64_t)tw__little(wide + 40, 8);
    p->directory = (int64_t)tw__little(wide + 48, 8);
  }
  if (p->directory < 0 || p->directory_bytes < 0 || p->directory_bytes > (1 << 20) ||
      p->directory > p->zip_bytes - p->directory_bytes)
    return tw__fail(TW_ERROR_PACKAGE, p->path, "the table of its zip is damaged");
  if (!(p->table = (unsigned char *)tw__get(p, (size_t)p->directory_bytes))) return TW_ERROR_MEMORY;
  if (tw__read(p->zip, p->table, (size_t)p->directory_bytes, p->directory))
    return tw__fail(TW_ERROR_FILE, p->path, tw__why());
  return 0;
}

static void tw__close_zip(tw_package *p) {
  tw__give(p, p->table, (size_t)p->directory_bytes);
  p->table = NULL;
  if (p->zip != TW__NONE) tw__close_path(p->zip);
  p->zip = TW__NONE;
}

static int tw__in_zip(tw_package *p, const char *name, tw__file *file) {
  size_t bytes = (size_t)p->directory_bytes, at = 0, length = strlen(name);
  unsigned char *table = p->table, local[30];
  int code = -1;
  while (at + 46 <= bytes && tw__little(table + at, 4) == 0x02014b50u) {
    unsigned char *e = table + at, *extra;
    size_t n = (size_t)tw__little(e + 28, 2), m = (size_t)tw__little(e + 30, 2);
    size_t rest = (size_t)tw__little(e + 32, 2);
    if (at + 46 + n + m + rest > bytes) break;
    at += 46 + n + m + rest;
    if (n != length || memcmp(e + 46, name, n)) continue;
    file->size = (int64_t)tw__little(e + 24, 4);
    file->offset = (int64_t)tw__little(e + 42, 4);
    if (tw__little(e + 10, 2)) {
      code = tw__fail(TW_ERROR_PACKAGE, p->path, "its files are compressed, and have to be stored");
      break;
    }
    for (extra = e + 46 + n; m >= 4;) { /* sizes above 32 bits */
      size_t part = (size_t)tw__little(extra + 2, 2), used = 4;
      if (part + 4 > m) break;
      if (tw__little(extra, 2) == 1) {
        if (file->size == 0xffffffffLL && used + 8 <= part + 4) {
          file->size = (int64_t)tw__little(extra + used, 8);
          used += 8;
        }
        if (tw__little(e + 20, 4) == 0xffffffffu) used += 8;
        if (file->offset == 0xffffffffLL && used + 8 <= part + 4)
          file->offset = (int64_t)tw__little(extra + used, 8);
      }
      extra += part + 4;
      m -= part + 4;
    }
    if (file->size < 0 || file->offset < 0 || file->offset > p->zip_bytes - 30 ||
        tw__read(p->zip, local, sizeof local, file->offset) ||
        tw__little(local, 4) != 0x04034b50u) {
      code = tw__fail(TW_ERROR_PACKAGE, p->path, "the table of its zip is damaged");
      break;
    }
    file->offset += 30 + (int64_t)tw__little(local + 26, 2) + (int64_t)tw__little(local + 28, 2);
    if (file->offset > p->zip_bytes || file->size > p->zip_bytes - file->offset) {
      code = tw__fail(TW_ERROR_PACKAGE, p->path, "its zip is truncated");
      break;
    }
    file->fd = p->zip;
    code = 0;
    break;
  }
  return code < 0 ? tw__fail(TW_ERROR_FILE, p->path, "a file is missing in it") : code;
}

/* Does a path of the manifest stay inside of the package? */
static int tw__inside(const char *name) {
  const char *part = name;
  if (!*name || strlen(name) > 255 || strchr(name, '\\')) return 0;
  for (;;) {
    size_t n = strcspn(part, "/");
    if (!n || (n == 1 && part[0] == '.') || (n == 2 && part[0] == '.' && part[1] == '.')) return 0;
    if (!part[n]) return 1;
    part += n + 1;
  }
}

static int tw__open_file(tw_package *p, const char *name, tw__file *file) {
  char path[4096];
  const char *why = "";
  if (!tw__inside(name)) return tw__fail(TW_ERROR_OUTSIDE, p->path, name);
  if (p->zip != TW__NONE) return tw__in_zip(p, name, file);
  if (snprintf(path, sizeof path, "%s/%s", p->path, name) >= (int)sizeof path)
    return tw__fail(TW_ERROR_FILE, p->path, strerror(ENAMETOOLONG));
  file->offset = 0;
  file->fd = tw__open_path(path, 0, &file->size, &why);
  return file->fd == TW__NONE ? tw__fail(TW_ERROR_FILE, path, why) : 0;
}

static void tw__close_file(tw_package *p, tw__file *file) {
  if (p->zip == TW__NONE && file->fd != TW__NONE) tw__close_path(file->fd);
  file->fd = TW__NONE;
}

/* ---- the manifest */

static int tw__find(const tw_package *p, int object, const char *key, int type) {
  int k = object < 0 || p->nodes[object].type != TW__OBJECT ? -1 : p->nodes[object].child;
  for (; k >= 0; k = p->nodes[k].next)
    if (!strcmp(p->nodes[k].key, key)) return p->nodes[k].type == type ? k : -1;
  return -1;
}

static const char *tw__text_of(const tw_package *p, int object, const char *key) {
  int k = tw__find(p, object, key, TW__STRING);
  return k < 0 ? NULL : p->nodes[k].text;
}

static int64_t tw__number_of(const tw_package *p, int object, const char *key) {
  int k = tw__find(p, object, key, TW__NUMBER);
  return k < 0 ? -1 : p->nodes[k].number;
}

static size_t tw__count(const tw_package *p, int k) {
  size_t n = 0;
  for (k = p->nodes[k].child; k >= 0; k = p->nodes[k].next) n++;
  return n;
}

static int tw__lacks(tw_package *p, const char *what) {
  char text[200];
  snprintf(text, sizeof text, "its manifest lacks %s", what);
  return tw__fail(TW_ERROR_PACKAGE, p->path, text);
}

static int tw__parse(tw_package *p) {
  tw__file file;
  tw__json j;
  int code = tw__open_file(p, "manifest.json", &file);
  int64_t format;
  if (code) return code;
  p->manifest_bytes = (size_t)file.size + 1;
  if (file.size > (64 << 20)) code = tw__fail(TW_ERROR_PACKAGE, p->path, "its manifest is too large");
  else if (!(p->manifest = (char *)tw__get(p, p->manifest_bytes)) ||
           !(p->strings = (char *)tw__get(p, p->manifest_bytes))) code = TW_ERROR_MEMORY;
  else if (tw__read(file.fd, p->manifest, (size_t)file.size, file.offset))
    code = tw__fail(TW_ERROR_FILE, p->path, tw__why());
  tw__close_file(p, &file);
  if (code) return code;
  p->manifest[file.size] = 0;
  if (!tw__is_utf8(p->manifest, (size_t)file.size))
    return tw__fail(TW_ERROR_PACKAGE, p->path, "its manifest is not UTF-8");
  memcpy(p->strings, p->manifest, p->manifest_bytes);
  memset(&j, 0, sizeof j);
  j.at = p->strings;
  for (j.room = 1; *j.at; j.at++) /* at most one value after each of these */
    j.room += *j.at == ',' || *j.at == '[' || *j.at == '{';
  j.at = p->strings;
  p->nodes_bytes = (size_t)j.room * sizeof *p->nodes;
  if (!(p->nodes = (tw__node *)tw__get(p, p->nodes_bytes))) return TW_ERROR_MEMORY;
  j.nodes = p->nodes;
  if (tw__value(&j, 0) < 0) return tw__fail(TW_ERROR_PACKAGE, p->path, j.why);
  tw__space(&j);
  if (*j.at || j.at != p->strings + file.size || p->nodes[0].type != TW__OBJECT)
    return tw__fail(TW_ERROR_PACKAGE, p->path, "its manifest is not one JSON object");
  format = tw__number_of(p, 0, "format");
  if (format < 0) return tw__lacks(p, "its format");
  if (format < 1 || format > TW__FORMAT)
    return tw__fail(TW_ERROR_FORMAT, p->path, (long long)format, (long long)TW__FORMAT);
  return 0;
}

/* Names, dtypes and sizes of all tensors; symbols, and which axis of which input is each. */
static int tw__describe(tw_package *p) {
  int lists[2], dims = tw__find(p, 0, "dims", TW__OBJECT), k, list, axis;
  size_t n = 0, tensors, t = 0, d = 0, at = 0;
  int64_t *shapes;
  const char **sizes;
  char *digits;
  lists[0] = tw__find(p, 0, "inputs", TW__LIST);
  lists[1] = tw__find(p, 0, "outputs", TW__LIST);
  p->checks = tw__find(p, 0, "checks", TW__LIST);
  if (lists[0] < 0 || lists[1] < 0 || dims < 0 || p->checks < 0)
    return tw__lacks(p, "inputs, outputs, dims or checks");
  p->input_count = tw__count(p, lists[0]);
  p->output_count = tw__count(p, lists[1]);
  p->dim_count = tw__count(p, dims);
  tensors = p->input_count + p->output_count;
  for (list = 0; list < 2; list++)
    for (k = p->nodes[lists[list]].child; k >= 0; k = p->nodes[k].next) {
      int shape = tw__find(p, k, "shape", TW__LIST);
      if (shape < 0 || !tw__text_of(p, k, "name") || !tw__text_of(p, k, "dtype"))
        return tw__lacks(p, "a name, dtype or shape");
      if (tw__count(p, shape) > TW_MAX_RANK)
        return tw__fail(TW_ERROR_PACKAGE, p->path, "a tensor has too many axes");
      n += tw__count(p, shape);
    }
  p->extents = n;
  p->tensors_bytes = tensors * sizeof *p->tensors;
  p->details_bytes = n * (sizeof *shapes + sizeof *sizes + 24) + p->dim_count * sizeof *p->dims;
  if (!(p->tensors = (tw_description *)tw__get(p, p->tensors_bytes)) ||
      !(p->details = tw__get(p, p->details_bytes))) return TW_ERROR_MEMORY;
  shapes = (int64_t *)p->details;
  p->dims = (tw__dim *)(shapes + n);
  sizes = (const char **)(p->dims + p->dim_count);
  digits = (char *)(sizes + n);
  for (k = p->nodes[dims].child; k >= 0; k = p->nodes[k].next, d++) {
    int low = p->nodes[k].child, high = low < 0 ? -1 : p->nodes[low].next;
    if (p->nodes[k].type != TW__LIST || high < 0 || p->nodes[low].type != TW__NUMBER ||
        (p->nodes[high].type != TW__NUMBER && p->nodes[high].type != TW__NULL))
      return tw__lacks(p, "the bounds of a dim");
    p->dims[d].name = p->nodes[k].key;
    p->dims[d].low = p->nodes[low].number;
    p->dims[d].high = p->nodes[high].type == TW__NULL ? INT64_MAX : p->nodes[high].number;
    p->dims[d].input = -1;
  }
  for (list = 0; list < 2; list++)
    for (k = p->nodes[lists[list]].child; k >= 0; k = p->nodes[k].next, t++) {
      tw_description *x = &p->tensors[t];
      int e = p->nodes[tw__find(p, k, "shape", TW__LIST)].child;
      const char *dtype = tw__text_of(p, k, "dtype");
      x->name = tw__text_of(p, k, "name");
      x->shape = shapes + at;
      x->sizes = sizes + at;
      for (x->dtype = TW_BOOL; x->dtype && strcmp(tw__dtypes[x->dtype].name, dtype);) x->dtype--;
      if (!x->dtype) return tw__fail(TW_ERROR_PACKAGE, p->path, "a dtype is unknown");
      for (axis = 0; e >= 0; e = p->nodes[e].next, axis++, at++) {
        if (p->nodes[e].type == TW__NUMBER && p->nodes[e].number >= 0) {
          shapes[at] = p->nodes[e].number;
          sizes[at] = digits + 24 * at;
          snprintf(digits + 24 * at, 24, "%lld", (long long)shapes[at]);
        } else if (p->nodes[e].type == TW__STRING) {
          shapes[at] = -1;
          sizes[at] = p->nodes[e].text;
        } else return tw__lacks(p, "a size");
        for (d = 0; !list && shapes[at] < 0 && d < p->dim_count; d++)
          if (p->dims[d].input < 0 && !strcmp(p->dims[d].name, sizes[at])) {
            p->dims[d].input = (int)t;
            p->dims[d].axis = axis;
          }
      }
      x->rank = axis;
    }
  for (d = 0; d < p->dim_count; d++)
    if (p->dims[d].input < 0)
      return tw__fail(TW_ERROR_PACKAGE, p->path, "no input has an axis of some dim's size");
  return 0;
}

/* ---- the processor */

#if defined(_WIN32)
#define TW__SYSTEM "-windows"
#elif defined(__APPLE__)
#define TW__SYSTEM "-macos"
#else
#define TW__SYSTEM ""
#endif
#if defined(__x86_64__)
#define TW__MACHINE "x86_64" TW__SYSTEM
#elif defined(__aarch64__)
#define TW__MACHINE "aarch64" TW__SYSTEM
#elif defined(__riscv) && __riscv_xlen == 64
#define TW__MACHINE "riscv64" TW__SYSTEM
#elif defined(__arm__)
#define TW__MACHINE "armv7" TW__SYSTEM
#else
#define TW__MACHINE "another one"
#endif

#if defined(__x86_64__)
/* Registers of tiles, bit 18, are saved for processes that requested them: arch_prctl, in Linux. */
static int tw__tiles_permitted(void) {
#if defined(__linux__)
  long code = 158;
  __asm__ volatile("syscall" : "+a"(code) : "D"(0x1023L), "S"(18L) : "rcx", "r11", "memory");
  return code == 0;
#else
  return 0;
#endif
}
#endif

#define TW__ASKED 16

/* What the processor answered so far: a virtual machine leaves it to its host, which takes as long
   as all the rest of opening a package if each feature asks again. */
typedef struct {
  unsigned leaf[TW__ASKED], sub[TW__ASKED], r[TW__ASKED][4];
  int count;
} tw__answers;

#if defined(__x86_64__)
static const unsigned *tw__ask(tw__answers *a, unsigned leaf, unsigned sub) {
  unsigned first = leaf & 0x80000000u, highest; /* the first leaf tells which is the highest */
  int k;
  for (k = 0; k < a->count; k++)
    if (a->leaf[k] == leaf && a->sub[k] == sub) return a->r[k];
  highest = leaf == first ? leaf : tw__ask(a, first, 0)[0];
  /* More answers than any processor needs: the last one is asked again. */
  k = a->count < TW__ASKED ? a->count++ : TW__ASKED - 1;
  memset(a->r[k], 0, sizeof a->r[k]);
  if (leaf <= highest) __cpuid_count(leaf, sub, a->r[k][0], a->r[k][1], a->r[k][2], a->r[k][3]);
  a->leaf[k] = leaf;
  a->sub[k] = sub;
  return a->r[k];
}
#endif

/* One word of a feature's test, such as "cpuid:7:0:ebx:5" or "hwcap:20"; unknown ones fail. */
static int tw__holds(tw__answers *answers, const char *word) {
  unsigned long bit;
#if defined(__x86_64__)
  unsigned leaf, sub, low, high;
  unsigned long long mask;
  char reg[4];
  if (sscanf(word, "cpuid:%u:%u:%3[a-z]:%lu", &leaf, &sub, reg, &bit) == 4) {
    const char *names[4] = {"eax", "ebx", "ecx", "edx"};
    int k = 0;
    while (k < 4 && strcmp(reg, names[k])) k++;
    return k < 4 && bit < 32 && (tw__ask(answers, leaf, sub)[k] >> bit & 1);
  }
  if (sscanf(word, "xcr0:%llu", &mask) == 1) {
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if (((((unsigned long long)high << 32) | low) & mask) != mask) return 0;
    return !(mask >> 18 & 1) || tw__tiles_permitted();
  }
#elif defined(__linux__)
  if (sscanf(word, "hwcap:%lu", &bit) == 1) return bit < 64 && getauxval(16) >> bit & 1;
  if (sscanf(word, "hwcap2:%lu", &bit) == 1) return bit < 64 && getauxval(26) >> bit & 1;
#endif
  (void)answers;
  (void)word;
  (void)bit;
  return 0;
}

static int tw__has(tw__answers *answers, const char *test) {
  char word[64];
  int used;
  while (sscanf(test, " %63s%n", word, &used) == 1) {
    if (!tw__holds(answers, word)) return 0;
    test += used;
  }
  return 1;
}

/* The first level that this machine runs: the best. */
static int tw__choose(tw_package *p, int *chosen) {
  int levels = tw__find(p, 0, "levels", TW__LIST), k, f;
  char others[200] = "", missing[200] = "";
  const char *least = NULL;
  tw__answers answers;
  answers.count = 0;
  *chosen = -1;
  if (levels < 0 || p->nodes[levels].child < 0) return tw__lacks(p, "levels");
  for (k = p->nodes[levels].child; k >= 0; k = p->nodes[k].next) {
    const char *arch = tw__text_of(p, k, "architecture"), *target = tw__text_of(p, k, "target");
    int features = tw__find(p, k, "features", TW__OBJECT);
    size_t n = strlen(others);
    if (!arch || !target || features < 0) return tw__lacks(p, "a target and its features");
    if (strcmp(arch, TW__MACHINE)) {
      if (!strstr(others, arch)) snprintf(others + n, sizeof others - n, "%s%s", n ? ", " : "", arch);
      continue;
    }
    least = target;
    missing[0] = 0;
    for (f = p->nodes[features].child; f >= 0; f = p->nodes[f].next) {
      n = strlen(missing);
      if (p->nodes[f].type != TW__STRING) return tw__lacks(p, "the test of a feature");
      if (!tw__has(&answers, p->nodes[f].text))
        snprintf(missing + n, sizeof missing - n, "%s%s", n ? ", " : "", p->nodes[f].key);
    }
    if (!missing[0]) {
      *chosen = k;
      p->level = target;
#if defined(__x86_64__)
      p->vectors = tw__has(&answers, TW__VECTOR_TEST);
#endif
      return 0;
    }
  }
  if (least) return tw__fail(TW_ERROR_FEATURE, p->path, least, missing);
  return tw__fail(TW_ERROR_ARCHITECTURE, p->path, others, TW__MACHINE);
}

/* ---- code */

/* Is it what the manifest's `object` says? Of two checksums the one in lanes is compared. */
static int tw__as_listed(const tw_package *p, int object, const tw__copied *x) {
  const char *lanes = tw__text_of(p, object, "blake2bp");
  if (lanes) return tw__lanes_are(x->content, x->size, lanes, p->vectors);
  return tw__sum_is(x->content, x->size, tw__text_of(p, object, "blake2b"));
}

/* Loads a library of the package: its size and checksum are those of the manifest's `object`. */
static int tw__load(tw_package *p, int object, int pool, tw__library *library) {
  const char *name = tw__text_of(p, object, "file"), *why = "";
  int64_t bytes = tw__number_of(p, object, "bytes");
  tw__file file;
  tw__copied copy;
  int code;
  if (!name || !tw__text_of(p, object, "blake2b") || bytes < 0)
    return tw__lacks(p, "a file, its bytes or its checksum");
  if ((code = tw__open_file(p, name, &file))) return code;
  if (file.size != bytes)
    code = tw__fail(TW_ERROR_SIZE, p->path, name, (long long)file.size, (long long)bytes);
  else if (!bytes) code = tw__fail(TW_ERROR_LOAD, p->path, name, "it is empty");
  else if (tw__copy_library(file.fd, file.offset, (size_t)bytes, &copy))
    code = tw__fail(TW_ERROR_FILE, p->path, tw__why());
  else {
    if (!tw__as_listed(p, object, &copy)) code = tw__fail(TW_ERROR_ALTERED, p->path, name);
    else if (tw__load_library(&copy, pool, library, &why))
      code = tw__fail(TW_ERROR_LOAD, p->path, name, why);
    tw__drop_copy(&copy);
  }
  tw__close_file(p, &file);
  return code;
}

static void (*tw__pool_reset)(void);
static void (*tw__pool_resize)(int64_t);
static int64_t (*tw__pool_threads)(void);

/* The pool of threads: that of the process if one is there, else the package's, which stays. */
static int tw__find_pool(tw_package *p) {
  int pools = tw__find(p, 0, "pool", TW__OBJECT), own = tw__find(p, pools, TW__MACHINE, TW__OBJECT);
  void (*spin)(int64_t) = NULL;
  void (*parallel)(void) = NULL;
  tw__library library;
  int code = 0;
  tw__acquire(&tw__lock);
  if (!tw__pool_resize) {
    library.handle = tw__process();
    if (tw__function(library.handle, "tw_parallel", &parallel, sizeof parallel)) {
      if (own < 0) code = tw__lacks(p, "the pool of threads for " TW__MACHINE);
      else code = tw__load(p, own, 1, &library);
      if (!code && tw__function(library.handle, "tw_pool_set_spin", &spin, sizeof spin))
        code = tw__fail(TW_ERROR_LOAD, p->path, "the pool", "it has not the functions of one");
    }
    if (!code && (tw__function(library.handle, "tw_pool_reset", &tw__pool_reset, sizeof spin) ||
                  tw__function(library.handle, "tw_pool_threads", &tw__pool_threads, sizeof spin) ||
                  tw__function(library.handle, "tw_pool_resize", &tw__pool_resize, sizeof spin)))
      code = tw__fail(TW_ERROR_LOAD, p->path, "the pool", "it has not the functions of one");
    if (!code && spin) {
      tw__pool_reset();
      spin(TW__SPIN);
      tw__pool_resize(tw__processors());
      tw__in_children(tw__pool_reset);
    }
  }
  tw__unlock(&tw__lock);
  return code;
}

int tw_set_threads(int count) {
  if (count < 1 || count > 1024)
    return tw__fail(TW_ERROR_ARGUMENT, "the number of threads must be between 1 and 1024");
  if (!tw__pool_resize)
    return tw__fail(TW_ERROR_ARGUMENT, "no open package has threads: open one first");
  tw__pool_resize(count);
  return 0;
}

int tw_get_threads(void) { return tw__pool_threads ? (int)tw__pool_threads() : 1; }

static int tw__map_weights(tw_package *p, unsigned flags) {
  int weights = tw__find(p, 0, "weights", TW__OBJECT), code;
  const char *name = tw__text_of(p, weights, "file"), *sum = tw__text_of(p, weights, "blake2b");
  int64_t bytes = tw__number_of(p, weights, "bytes");
  tw__file file;
  if (!name || !sum || bytes < 0) return tw__lacks(p, "the weights' file, bytes or checksum");
  if ((code = tw__open_file(p, name, &file))) return code;
  if (file.size != bytes)
    code = tw__fail(TW_ERROR_SIZE, p->path, name, (long long)file.size, (long long)bytes);
  else if (file.offset % TW__LINE)
    code = tw__fail(TW_ERROR_PACKAGE, p->path, "its weights are not aligned");
  else if (bytes) {
    p->weights = tw__map(file.fd, file.offset, bytes, &p->map, &p->map_bytes);
    if (!p->weights) code = tw__fail(TW_ERROR_FILE, p->path, tw__why());
    else if (flags & TW_VERIFY_WEIGHTS && !tw__sum_is(p->weights, (size_t)bytes, sum))
      code = tw__fail(TW_ERROR_ALTERED, p->path, name);
  }
  tw__close_file(p, &file);
  return code;
}

static void tw__use_copy(tw_package *p) {
  p->weights = (const unsigned char *)p->copy;
  tw__unmap(p->map, p->map_bytes);
  p->map = NULL;
}

/* Weights as calls read them, where that is not the file: it has them in fewer bits, or a copy was
   asked for. */
static int tw__unpack(tw_package *p, unsigned flags) {
  int weights = tw__find(p, 0, "weights", TW__OBJECT);
  int64_t bytes = tw__number_of(p, weights, "unpacked");
  void (*unpack)(const void *, void *) = NULL;
  if (!p->map) return 0;
  if (bytes < 0) {
    if (!(flags & TW_COPY_WEIGHTS)) return 0;
    p->copy_bytes = (size_t)tw__number_of(p, weights, "bytes");
    if (!(p->copy = tw__get(p, p->copy_bytes))) return TW_ERROR_MEMORY;
    memcpy(p->copy, p->weights, p->copy_bytes);
    tw__use_copy(p);
    return 0;
  }
  if (tw__function(p->code.handle, "tw_unpack", &unpack, sizeof unpack))
    return tw__fail(TW_ERROR_LOAD, p->path, "its code", "it has no function to unpack weights");
  p->copy_bytes = (size_t)bytes;
  if (!(p->copy = tw__get(p, p->copy_bytes))) return TW_ERROR_MEMORY;
  unpack(p->weights, p->copy);
  tw__use_copy(p);
  return 0;
}

static int tw__open(tw_package *p, unsigned flags) {
  int code, level, needs, folder = tw__is_folder(p->path);
  const char *why = "";
  if (folder < 0) return tw__fail(TW_ERROR_FILE, p->path, tw__why());
  if (!folder) {
    p->zip = tw__open_path(p->path, 1, &p->zip_bytes, &why);
    if (p->zip == TW__NONE) return tw__fail(TW_ERROR_FILE, p->path, why);
    if ((code = tw__open_zip(p))) return code;
  }
  if ((code = tw__parse(p)) || (code = tw__describe(p)) || (code = tw__choose(p, &level)) ||
      (code = tw__map_weights(p, flags)))
    return code;
  needs = tw__find(p, level, "pool", TW__TRUE);
  if (needs >= 0 && (code = tw__find_pool(p))) return code;
  if ((code = tw__load(p, level, 0, &p->code))) return code;
  if (tw__function(p->code.handle, "tw_workspace", &p->code_workspace, sizeof p->code_workspace) ||
      tw__function(p->code.handle, "tw_shapes", &p->code_shapes, sizeof p->code_shapes) ||
      tw__function(p->code.handle, "tw_run", &p->code_run, sizeof p->code_run) ||
      (tw__find(p, 0, "counted", TW__OBJECT) >= 0 &&
       tw__function(p->code.handle, "tw_results", &p->code_results, sizeof p->code_results)))
    return tw__fail(TW_ERROR_LOAD, p->path, tw__text_of(p, level, "file"),
                    "it has not the functions of a package");
  if ((code = tw__unpack(p, flags))) return code;
  tw__close_zip(p); /* what is mapped needs no descriptor */
  return 0;
}

int tw_open(const char *path, unsigned flags, tw_package **package) {
  tw_allocator memory;
  tw_package *p;
  int code;
  *package = NULL;
  tw__acquire(&tw__lock);
  memory = tw__allocator;
  tw__unlock(&tw__lock);
  p = (tw_package *)memory.allocate(memory.user, sizeof *p, TW__LINE);
  if (!p) return tw__fail(TW_ERROR_MEMORY, (long long)sizeof *p);
  memset(p, 0, sizeof *p);
  p->memory = memory;
  p->zip = p->code.kept = TW__NONE;
  tw__mutex_init(&p->lock);
  p->path = (char *)tw__get(p, strlen(path) + 1);
  if (!p->path) code = TW_ERROR_MEMORY;
  else {
    memcpy(p->path, path, strlen(path) + 1);
    code = tw__open(p, flags);
  }
  if (code) tw_close(p);
  else *package = p;
  return code;
}

void tw_close(tw_package *p) {
  tw_allocator memory;
  if (!p) return;
  memory = p->memory;
  tw__unload(&p->code);
  if (p->map) tw__unmap(p->map, p->map_bytes);
  tw__close_zip(p);
  tw__mutex_end(&p->lock);
  tw__give(p, p->spare, p->spare_bytes);
  tw__give(p, p->copy, p->copy_bytes);
  tw__give(p, p->details, p->details_bytes);
  tw__give(p, p->tensors, p->tensors_bytes);
  tw__give(p, p->nodes, p->nodes_bytes);
  tw__give(p, p->strings, p->manifest_bytes);
  tw__give(p, p->manifest, p->manifest_bytes);
  if (p->path) memory.release(memory.user, p->path, strlen(p->path) + 1);
  memory.release(memory.user, p, sizeof *p);
}

const tw_description *tw_inputs(const tw_package *p, size_t *count) {
  if (count) *count = p->input_count;
  return p->tensors;
}

const tw_description *tw_outputs(const tw_package *p, size_t *count) {
  if (count) *count = p->output_count;
  return p->tensors + p->input_count;
}

const char *tw_manifest(const tw_package *p) { return p->manifest; }
const char *tw_level(const tw_package *p) { return p->level; }

/* ---- calls */

/* Room for what a call needs to know: on the stack for nearly all packages. */
typedef struct tw__call {
  int64_t *dims, *extents;
  const void **ins;
  void **outs;
  int64_t small[256];
  int64_t *large;
  size_t large_bytes;
} tw__call;

static int tw__begin(const tw_package *p, tw__call *c) {
  size_t n = p->dim_count + p->extents + p->input_count + p->output_count;
  int64_t *room = c->small;
  c->large = NULL;
  c->large_bytes = n * sizeof *room;
  if (n > sizeof c->small / sizeof *c->small) {
    c->large = room = (int64_t *)tw__get((tw_package *)p, c->large_bytes);
    if (!room) return TW_ERROR_MEMORY;
  }
  c->dims = room;
  c->extents = room + p->dim_count;
  c->ins = (const void **)(c->extents + p->extents);
  c->outs = (void **)(c->ins + p->input_count);
  return 0;
}

static void tw__end(const tw_package *p, tw__call *c) {
  if (c->large) tw__give((tw_package *)p, c->large, c->large_bytes);
}

static const char *tw__shown(char *text, size_t room, const tw_description *x, const int64_t *shape,
                             int rank) {
  size_t n = (size_t)snprintf(text, room, "[");
  int k;
  for (k = 0; k < rank && n + 32 < room; k++) {
    const char *between = k ? ", " : "";
    n += shape ? (size_t)snprintf(text + n, room - n, "%s%lld", between, (long long)shape[k])
               : (size_t)snprintf(text + n, room - n, "%s%.24s", between, x->sizes[k]);
  }
  snprintf(text + n, room - n, "]");
  return text;
}

static int tw__misshaped(const tw_description *x, const tw_tensor *given) {
  char wanted[256], found[256];
  return tw__fail(TW_ERROR_SHAPE, x->name, tw__shown(wanted, sizeof wanted, x, NULL, x->rank),
                  tw__shown(found, sizeof found, x, given->shape, given->rank));
}

static int tw__tensor_fits(const tw_description *x, const tw_tensor *given) {
  if (given->dtype != x->dtype)
    return tw__fail(TW_ERROR_DTYPE, x->name, tw_dtype_name(x->dtype), tw_dtype_name(given->dtype));
  return given->rank != x->rank ? tw__misshaped(x, given) : 0;
}

/* The values of dims, and every size, of a call; an error where inputs do not fit. */
static int tw__sizes(const tw_package *p, const tw_tensor *inputs, size_t count, tw__call *c) {
  size_t k, d, at = 0;
  int axis, code;
  if (count != p->input_count)
    return tw__fail(TW_ERROR_INPUTS, (long long)p->input_count, (long long)count);
  for (k = 0; k < count; k++)
    if ((code = tw__tensor_fits(&p->tensors[k], &inputs[k]))) return code;
  for (d = 0; d < p->dim_count; d++) {
    const tw__dim *x = &p->dims[d];
    int64_t value = c->dims[d] = inputs[x->input].shape[x->axis];
    if (value < x->low || value > x->high) {
      char range[64];
      if (x->high == INT64_MAX) snprintf(range, sizeof range, "%lld or more", (long long)x->low);
      else snprintf(range, sizeof range, "%lld to %lld", (long long)x->low, (long long)x->high);
      return tw__fail(TW_ERROR_BOUNDS, x->name, (long long)value, range);
    }
  }
  p->code_shapes(c->dims, c->extents);
  for (k = 0; k < count; k++)
    for (axis = 0; axis < p->tensors[k].rank; axis++, at++)
      if (inputs[k].shape[axis] != c->extents[at]) return tw__misshaped(&p->tensors[k], &inputs[k]);
  return 0;
}

static const int64_t *tw__extents_of(const tw_package *p, const tw__call *c, size_t tensor) {
  size_t k, at = 0;
  for (k = 0; k < tensor; k++) at += (size_t)p->tensors[k].rank;
  return c->extents + at;
}

int tw_output_shape(const tw_package *p, const tw_tensor *inputs, size_t input_count, size_t output,
                    int64_t *shape) {
  tw__call c;
  int code = tw__begin(p, &c);
  if (code) return code;
  if (output >= p->output_count) code = tw__fail(TW_ERROR_ARGUMENT, "there is no such output");
  else if (!(code = tw__sizes(p, inputs, input_count, &c))) {
    size_t k = p->input_count + output;
    memcpy(shape, tw__extents_of(p, &c, k), (size_t)p->tensors[k].rank * sizeof *shape);
  }
  tw__end(p, &c);
  return code;
}

int tw_workspace_bytes(const tw_package *p, const tw_tensor *inputs, size_t input_count,
                       size_t *bytes) {
  tw__call c;
  int code = tw__begin(p, &c);
  if (code) return code;
  code = tw__sizes(p, inputs, input_count, &c);
  if (!code) *bytes = (size_t)p->code_workspace(c.dims);
  tw__end(p, &c);
  return code;
}

/* What the check that failed has to say, of the integers that the call left. */
static int tw__told(const tw_package *p, int32_t number, const int64_t *found) {
  int k = p->nodes[p->checks].child;
  const char *words, *at;
  char text[900];
  size_t n = 0;
  while (--number > 0 && k >= 0) k = p->nodes[k].next;
  words = k < 0 ? NULL : tw__text_of(p, k, "words");
  for (at = words ? words : "a check of the data failed"; *at && n + 64 < sizeof text;) {
    int64_t index = found[0] > 0 ? found[0] - 1 : found[0];
    if (!strncmp(at, "{index}", 7)) {
      n += (size_t)snprintf(text + n, sizeof text - n, "%lld", (long long)index);
      at += 7;
    } else if (!strncmp(at, "{size}", 6)) {
      n += (size_t)snprintf(text + n, sizeof text - n, "%lld", (long long)found[1]);
      at += 6;
    } else text[n++] = *at++;
  }
  text[n] = 0;
  return tw__fail(TW_ERROR_CHECK, text);
}

static void *tw__take(tw_package *p, size_t bytes) {
  void *memory;
  size_t had;
  tw__acquire(&p->lock);
  memory = p->spare;
  had = p->spare_bytes;
  p->spare = NULL;
  p->spare_bytes = 0;
  tw__unlock(&p->lock);
  if (memory && had == bytes) return memory;
  tw__give(p, memory, had);
  return tw__get(p, bytes);
}

static void tw__leave(tw_package *p, void *memory, size_t bytes) {
  tw__acquire(&p->lock);
  if (!p->spare) {
    p->spare = memory;
    p->spare_bytes = bytes;
    memory = NULL;
  }
  tw__unlock(&p->lock);
  tw__give(p, memory, bytes);
}

int tw_run(tw_package *p, const tw_tensor *inputs, size_t input_count, const tw_tensor *outputs,
           size_t output_count, void *workspace) {
  if (p->code_results)
    return tw__fail(TW_ERROR_ARGUMENT, "data decides sizes of outputs: tw_run_shapes tells them");
  return tw_run_shapes(p, inputs, input_count, outputs, output_count, workspace, NULL);
}

int tw_run_shapes(tw_package *p, const tw_tensor *inputs, size_t input_count,
                  const tw_tensor *outputs, size_t output_count, void *workspace, int64_t *shapes) {
  tw__call c;
  size_t k, bytes = 0;
  void *own = NULL;
  int axis, code = tw__begin(p, &c);
  int32_t failed;
  if (code) return code;
  if ((code = tw__sizes(p, inputs, input_count, &c))) goto end;
  if (output_count != p->output_count) {
    code = tw__fail(TW_ERROR_OUTPUTS, (long long)p->output_count, (long long)output_count);
    goto end;
  }
  for (k = 0; k < output_count; k++) {
    const tw_description *x = &p->tensors[input_count + k];
    const int64_t *wanted = tw__extents_of(p, &c, input_count + k);
    if ((code = tw__tensor_fits(x, &outputs[k]))) goto end;
    for (axis = 0; axis < x->rank; axis++)
      if (outputs[k].shape[axis] != wanted[axis]) {
        code = tw__misshaped(x, &outputs[k]);
        goto end;
      }
    c.outs[k] = outputs[k].data;
  }
  for (k = 0; k < input_count; k++) c.ins[k] = inputs[k].data;
  if (!workspace) {
    bytes = (size_t)p->code_workspace(c.dims);
    if (!(workspace = own = tw__take(p, bytes))) {
      code = TW_ERROR_MEMORY;
      goto end;
    }
  } else if ((uintptr_t)workspace % TW__LINE) {
    code = tw__fail(TW_ERROR_ARGUMENT, "the workspace is not aligned to 64 bytes");
    goto end;
  }
  failed = p->code_run(p->weights, c.ins, c.outs, c.dims, workspace);
  if (failed)
    code = tw__told(p, failed, (const int64_t *)((char *)workspace + (size_t)failed * TW__LINE));
  else if (shapes && p->code_results) p->code_results(c.dims, workspace, shapes);
  else if (shapes) {
    const int64_t *first = tw__extents_of(p, &c, input_count);
    memcpy(shapes, first, (size_t)(c.extents + p->extents - first) * sizeof *shapes);
  }
  if (own) tw__leave(p, own, bytes);
end:
  tw__end(p, &c);
  return code;
}

#ifdef __cplusplus
}
#endif

#endif /* TILEWRIGHT_IMPLEMENTED */
#endif /* TILEWRIGHT_IMPLEMENTATION */
